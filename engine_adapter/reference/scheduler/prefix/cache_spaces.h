// The namespaces of one model, one for each cache salt. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "kvtier/client.h"

namespace kvtier::engine {

// Where a request's blocks are known by name.
struct CacheSpace {
  NamespaceId id;
  std::shared_ptr<Cache> cache;     // null: the engine's own pages only
  std::uint32_t answer_tokens = 0;  // at most, of the request; 0: not known

  // For what is offered to the cache, which is there.
  Prefix prefix_of(std::span<const Token> tokens) const;
};

class CacheSpaces {
 public:
  using Open = std::function<Result<std::shared_ptr<Cache>>(const Namespace&)>;

  // Without `open` there is no cache. `ns` is the model's, without a tenant.
  explicit CacheSpaces(Namespace ns, Open open = {});
  // Of a client, which may be null.
  CacheSpaces(Namespace ns, const std::shared_ptr<Client>& client);
  // Of one cache for the empty salt, which outlives this and may be null; other salts have none.
  CacheSpaces(Namespace ns, Cache* cache);

  // Beyond kCacheSaltsMax different salts, new ones have the engine's own pages only. Errors:
  // invalid (the salt), those of Client::open().
  Result<CacheSpace> space(const std::string& salt);

 private:
  const Namespace ns_;
  const Open open_;
  std::mutex mutex_;
  std::map<std::string, CacheSpace> spaces_;
};

}  // namespace kvtier::engine
