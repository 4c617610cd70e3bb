// A memory tier whose cap was lowered gives extents back.
#include "daemon/cache/block_cache.h"

namespace kvtier::daemon {

bool BlockCache::shrink() {
  bool any = false;
  shrink_goes_on_ = false;
  const auto one = [&](MemoryTier& tier) {
    if (!tier.over_cap()) {
      if (tier.shrinking()) tier.stop_draining();
      return;
    }
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
  tier.set_shrinking();
  const auto before = tier.use_of(*id).taken;
  switch (empty_some(tier, Removal::capacity)) {
    case Emptied::gone:
    case Emptied::more:
      shrink_goes_on_ = true;
      break;
    case Emptied::stays:
      shrink_goes_on_ = shrink_goes_on_ || tier.use_of(*id).taken != before;
  }
}

// The one with the fewest slots that must stay for now: reserved or quarantined ones and those of
// held blocks. Of equal ones, the one that is being emptied already.
std::optional<ExtentId> BlockCache::easiest_to_empty(MemoryTier& tier) const {
  std::optional<ExtentId> best = tier.draining();
  std::uint32_t fewest = best ? tier.use_of(*best).staying() : ~0U;
  tier.each_extent([&](const storage::Extent& extent) {
    const std::uint32_t staying = tier.use_of(extent.id()).staying();
    if (staying >= fewest) return;
    best = extent.id();
    fewest = staying;
  });
  return best;
}

}  // namespace kvtier::daemon
