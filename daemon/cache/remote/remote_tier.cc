#include "daemon/cache/remote/remote_tier.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace kvtier::daemon {

using storage::RemoteState;

RemoteTier::RemoteTier(Options options, storage::RemoteStore* store, Catalogue& catalogue)
    : options_(std::move(options)),
      store_(store),
      catalogue_(catalogue),
      knowledge_(options_, catalogue, later, counts_),
      lookups_(options_, store, catalogue, knowledge_, after, counts_),
      writes_(options_, store, catalogue, knowledge_, counts_) {
  writes_.on_written = [this](const Key& key) { lookups_.forget_absent(key); };
  if (store_ == nullptr) return;
  store_->on_health([this](RemoteState state, const std::string& why) {
    why_ = why;
    if (state == knowledge_.state()) return;
    knowledge_.set_state(state);
    if (state == RemoteState::online) {
      spdlog::info("remote tier: online");
    } else {
      spdlog::warn("remote tier: {}: {}", state_name(), why);
    }
    writes_.state_changed();
  });
}

const char* RemoteTier::state_name() const noexcept {
  switch (knowledge_.state()) {
    case RemoteState::online:
      return "online";
    case RemoteState::read_only:
      return "read-only";
    case RemoteState::offline:
      break;
  }
  return "offline";
}

Result<void> RemoteTier::read(BlockId id, Place to, std::function<void(Result<void>)> done) {
  const Block& block = catalogue_.block(id);
  const auto began = options_.now();
  const storage::RemoteStore::Read read{
      catalogue_.namespaces()[block.ns].id, block.key,
      storage::ExtentId(to.container),      to.slot,
      catalogue_.record_bytes(id),          began + options_.read_timeout};
  return store_->read(read, [this, began, done = std::move(done)](const Result<void>& result) {
    if (result) {
      counts_.read_us.add(static_cast<std::uint64_t>(
          std::chrono::duration_cast<std::chrono::microseconds>(options_.now() - began).count()));
    }
    done(result);
  });
}

bool RemoteTier::read_failed(BlockId id, const Error& why) {
  switch (why.code) {
    case Errc::not_found:
      ++counts_.stale;
      knowledge_.forget(id);
      return false;
    case Errc::unavailable:
    case Errc::deadline:
    case Errc::no_space:
    case Errc::io:
      return false;
    default:
      spdlog::warn("remote tier: block {} did not hold: {}", to_hex(catalogue_.block(id).key),
                   why.message);
      knowledge_.forget(id);
      return true;
  }
}

void RemoteTier::erase(std::span<const BlockId> ids) {
  if (store_ == nullptr) return;
  std::vector<Key> keys;
  for (const BlockId id : ids) {
    const Block& block = catalogue_.block(id);
    if (options_.may_have(catalogue_.tenant(id))) keys.push_back(block.key);
  }
  if (!keys.empty()) store_->erase(std::move(keys));
}

}  // namespace kvtier::daemon
