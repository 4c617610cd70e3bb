#include "engine_adapter/reference/scheduler/prefix/cache_spaces.h"

#include "engine_adapter/reference/scheduler/limits.h"

namespace kvtier::engine {

Prefix CacheSpace::prefix_of(std::span<const Token> tokens) const {
  Prefix prefix = cache->prefix();
  (void)prefix.append(tokens);  // fails where blocks are named by digests, as none of ours are
  prefix.expect_answer(answer_tokens);
  return prefix;
}

CacheSpaces::CacheSpaces(Namespace ns, Open open) : ns_(std::move(ns)), open_(std::move(open)) {}

CacheSpaces::CacheSpaces(Namespace ns, const std::shared_ptr<Client>& client)
    : CacheSpaces(std::move(ns),
                  client == nullptr ? Open{} : Open([client](const Namespace& named) {
                    return client->open(named);
                  })) {}

CacheSpaces::CacheSpaces(Namespace ns, Cache* cache)
    : CacheSpaces(std::move(ns), [cache](const Namespace& named) -> Result<std::shared_ptr<Cache>> {
        if (cache == nullptr || !named.tenant.empty()) return std::shared_ptr<Cache>{};
        return std::shared_ptr<Cache>(cache, [](Cache*) {});
      }) {}

Result<CacheSpace> CacheSpaces::space(const std::string& salt) {
  const std::lock_guard lock(mutex_);
  if (const auto known = spaces_.find(salt); known != spaces_.end()) return known->second;
  Namespace named = ns_;
  if (!salt.empty()) named.tenant = salt;
  if (auto valid = named.validate(); !valid) {
    return make_error(Errc::invalid, "the cache salt: " + valid.error().message);
  }
  CacheSpace space{id_of(named), nullptr};
  if (spaces_.size() == kCacheSaltsMax) return space;
  if (open_) {
    auto cache = open_(named);
    if (!cache) return cache.error();
    space.cache = std::move(*cache);
  }
  return spaces_.emplace(salt, std::move(space)).first->second;
}

}  // namespace kvtier::engine
