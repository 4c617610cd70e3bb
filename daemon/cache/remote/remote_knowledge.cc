#include "daemon/cache/remote/remote_knowledge.h"

#include <algorithm>

#include "daemon/limits.h"

namespace kvtier::daemon {

void RemoteKnowledge::set_state(storage::RemoteState state) {
  const bool was_readable = readable();
  state_ = state;
  ++counts_.health_changes;
  if (was_readable == readable()) return;
  catalogue_.hide_remote(!readable());
  republish_from(0, counts_.health_changes);
}

// Leases know at once; the directory, which is advisory, follows in steps.
void RemoteKnowledge::republish_from(std::uint32_t number, std::uint64_t change) {
  if (change != counts_.health_changes) return;
  const std::uint32_t all = catalogue_.numbers_used();
  const std::uint32_t end = later_ ? std::min(all, number + limits::kRepublishStep) : all;
  for (; number < end; ++number) {
    const BlockId id(number);
    if (catalogue_.block(id).tiers.has(Tier::remote)) catalogue_.republish(id);
  }
  if (number < all) later_([this, number, change] { republish_from(number, change); });
}

bool RemoteKnowledge::may_have(std::uint16_t ns) const noexcept {
  const KnownNamespace& known = catalogue_.namespaces()[ns];
  return !known.closed && !known.vacant && !known.is_orphan() && options_.may_have(known.tenant);
}

bool RemoteKnowledge::may_look_for(std::uint16_t ns) const noexcept {
  return may_have(ns) && !bars_.has(catalogue_.namespaces()[ns].id);
}

bool RemoteKnowledge::drop_oldest() {
  const BlockId oldest = catalogue_.oldest_only_remote();
  if (oldest == kNoBlock) return false;
  ++counts_.forgotten;
  catalogue_.unset_remote(oldest);
  return true;
}

void RemoteKnowledge::trim() {
  std::uint32_t left = limits::kTrimStep;
  while (left-- > 0 && catalogue_.only_remote() > options_.known_max && drop_oldest()) {
  }
}

void RemoteKnowledge::learn(std::uint16_t ns, const After& after, std::span<const Key> keys) {
  After at = after;
  // More than may be known would push out its own beginning.
  keys = keys.first(std::min<std::size_t>(keys.size(), options_.known_max));
  for (const Key& key : keys) {
    if (bars_.has(key)) return;
    const BlockId id = entry(ns, key, at);
    if (id == kNoBlock) return;
    catalogue_.set_remote(id);
    at = {key, at.block_index + 1};
  }
}

// kNoBlock where there is no room for it, or the key is another namespace's or about to go.
BlockId RemoteKnowledge::entry(std::uint16_t ns, const Key& key, const After& after) {
  const BlockId known = catalogue_.find_any(key);
  if (known != kNoBlock) return catalogue_.find(ns, key);
  if (catalogue_.only_remote() >= options_.known_max && !drop_oldest()) return kNoBlock;
  if (catalogue_.size() == catalogue_.capacity() && !drop_oldest() &&
      !(make_entry && make_entry(catalogue_.namespaces()[ns].tenant))) {
    return kNoBlock;
  }
  const BlockId id = catalogue_.add(ns, key, after.parent, after.block_index);
  if (id == kNoBlock) return id;
  catalogue_.set_last_access(id, catalogue_.clock());
  ++counts_.learnt;
  return id;
}

void RemoteKnowledge::wrote(BlockId id) {
  bars_.lift(catalogue_.block(id).key);
  catalogue_.set_remote(id);
}

void RemoteKnowledge::forget(BlockId id) {
  if (!catalogue_.block(id).tiers.has(Tier::remote)) return;
  if (catalogue_.is_only_remote(id) && catalogue_.block(id).loading) return catalogue_.doom(id);
  catalogue_.unset_remote(id);
}

}  // namespace kvtier::daemon
