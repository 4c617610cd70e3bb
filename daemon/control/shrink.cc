// A memory tier whose cap was lowered gives extents back.
#include "daemon/control/block_cache.h"

namespace kvtier::daemon {

bool BlockCache::shrink() {
  bool any = false;
  const auto one = [&](MemoryTier& tier) {
    if (!tier.over_cap()) return tier.stop_draining();
    any = true;
    shrink(tier);
  };
  one(host_);
  for (const auto& device : devices_) one(*device);
  return any;
}

void BlockCache::shrink(MemoryTier& tier) {
  const auto id = easiest_to_empty(tier);
  if (!id) return;
  tier.drain(*id);
  const std::size_t t = index_of(tier.tier());
  storage::Extent& extent = *tier.extent(*id);
  for (std::uint32_t slot = 0; slot < extent.shape().slots(); ++slot) {
    const BlockId block = tier.block_at({id->value, slot});
    if (block != kNoBlock && catalogue_.block(block).holds[t] == 0)
      evict(tier, block, Removal::capacity);
  }
  tier.retire_extent(*id);
}

// The one that is being emptied already, or else the one with the fewest slots that must stay for
// now: reserved or quarantined ones and those of held blocks.
std::optional<ExtentId> BlockCache::easiest_to_empty(MemoryTier& tier) const {
  if (tier.draining()) return tier.draining();
  const std::size_t t = index_of(tier.tier());
  std::optional<ExtentId> best;
  std::uint64_t best_stay = ~std::uint64_t{0};
  tier.each_extent([&](storage::Extent& extent) {
    std::uint64_t stay = 0;
    for (std::uint32_t slot = 0; slot < extent.shape().slots(); ++slot) {
      if (extent.table().entry(slot).state == storage::SlotState::free) continue;
      const BlockId block = tier.block_at({extent.id().value, slot});
      if (block == kNoBlock || catalogue_.block(block).holds[t] != 0) ++stay;
    }
    if (stay >= best_stay) return;
    best = extent.id();
    best_stay = stay;
  });
  return best;
}

}  // namespace kvtier::daemon
