#include "daemon/control/catalogue.h"

#include "client/base/check.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

Catalogue::Catalogue(std::uint32_t blocks_max, DirectoryWriter& directory)
    : index_(blocks_max), directory_(directory) {}

LruList& Catalogue::list(BlockId id, Tier tier) {
  auto& lists = lists_[index_of(tier)];
  return lists.try_emplace(record_bytes(id), index_, tier).first->second;
}

void Catalogue::publish(BlockId id) noexcept {
  const Block& block = index_[id];
  directory_.set(block.key, block.doomed ? TierSet{} : block.tiers);
}

BlockId Catalogue::find(std::uint16_t ns, const Key& key) const noexcept {
  const BlockId id = index_.find(key);
  if (id == kNoBlock || index_[id].ns != ns || index_[id].doomed) return kNoBlock;
  return id;
}

BlockId Catalogue::add(std::uint16_t ns, const Key& key, std::uint32_t block_index) {
  const BlockId id = index_.insert(key);
  if (id == kNoBlock) return id;
  index_[id].ns = ns;
  index_[id].block_index = block_index;
  ++namespaces_[ns].blocks;
  return id;
}

void Catalogue::place(BlockId id, Tier tier, Place at, const Key& parent) {
  Block& block = index_[id];
  const std::size_t t = index_of(tier);
  KVTIER_CHECK(!block.tiers.has(tier));
  block.tiers = block.tiers.with(tier);
  block.places[t] = at;
  const std::uint64_t bytes = record_bytes(id);
  ++counts_[t].blocks;
  ++counts_[t].insertions;
  counts_[t].bytes += bytes;
  namespaces_[block.ns].bytes[t] += bytes;
  enlist(id, tier, parent);
  publish(id);
}

void Catalogue::enlist(BlockId id, Tier tier, const Key& parent) {
  const std::size_t t = index_of(tier);
  const BlockId up = parent.is_zero() ? kNoBlock : find(index_[id].ns, parent);
  if (up != kNoBlock && index_[up].tiers.has(tier) && index_[up].holds[t] == 0) {
    list(id, tier).push_behind(up, id);
  } else {
    list(id, tier).push_newest(id);
  }
}

Place Catalogue::unplace(BlockId id, Tier tier) {
  Block& block = index_[id];
  const std::size_t t = index_of(tier);
  KVTIER_CHECK(block.tiers.has(tier) && block.holds[t] == 0);
  list(id, tier).remove(id);
  block.tiers = block.tiers.without(tier);
  const Place at = block.places[t];
  const std::uint64_t bytes = record_bytes(id);
  --counts_[t].blocks;
  counts_[t].bytes -= bytes;
  namespaces_[block.ns].bytes[t] -= bytes;
  publish(id);
  erase_if_gone(id);
  return at;
}

void Catalogue::erase_if_gone(BlockId id) {
  if (!index_[id].tiers.empty()) return;
  --namespaces_[index_[id].ns].blocks;
  index_.erase(id);
}

bool Catalogue::hold(BlockId id, Tier tier) {
  Block& block = index_[id];
  std::uint16_t& holds = block.holds[index_of(tier)];
  KVTIER_CHECK(block.tiers.has(tier));
  if (holds == limits::kHoldsMax) return false;
  if (holds++ == 0) list(id, tier).remove(id);
  return true;
}

void Catalogue::unhold(BlockId id, Tier tier, const Key& parent) {
  Block& block = index_[id];
  std::uint16_t& holds = block.holds[index_of(tier)];
  KVTIER_CHECK(block.tiers.has(tier) && holds > 0);
  if (--holds == 0) enlist(id, tier, parent);
}

void Catalogue::touch(std::span<const BlockId> prefix) {
  for (std::size_t i = prefix.size(); i-- > 0;) {
    const BlockId id = prefix[i];
    const Block& block = index_[id];
    for (const Tier tier : kAllTiers) {
      if (!block.tiers.has(tier) || block.holds[index_of(tier)] != 0) continue;
      LruList& order = list(id, tier);
      order.remove(id);
      order.push_newest(id);
    }
  }
}

void Catalogue::doom(BlockId id) {
  index_[id].doomed = true;
  publish(id);
}

BlockId Catalogue::oldest(Tier tier, std::uint64_t bytes) const noexcept {
  const auto& lists = lists_[index_of(tier)];
  const auto found = lists.find(bytes);
  return found == lists.end() ? kNoBlock : found->second.oldest();
}

BlockId Catalogue::oldest_of_other_size(Tier tier, std::uint64_t bytes) const noexcept {
  BlockId best = kNoBlock;
  for (const auto& [size, order] : lists_[index_of(tier)]) {
    if (size == bytes || order.empty()) continue;
    if (best == kNoBlock || index_[order.oldest()].last_access < index_[best].last_access) {
      best = order.oldest();
    }
  }
  return best;
}

}  // namespace kvtier::daemon
