// A memory tier whose cap was lowered gives extents back, one after the other, in steps: there may
// be millions of slots.
#include <algorithm>
#include <utility>

#include "daemon/control/block_cache.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

bool BlockCache::shrink() {
  bool any = false;
  const auto one = [&](MemoryTier& tier) {
    if (!tier.over_cap()) return tier.stop_draining();
    any = true;
    if (shrinking_.try_emplace(&tier).second) go_on_shrinking(tier);
  };
  one(host_);
  for (const auto& device : devices_) one(*device);
  return any;
}

// Until the cap is reached, or an extent cannot be emptied for now.
void BlockCache::go_on_shrinking(MemoryTier& tier) {
  Shrinking& state = shrinking_.at(&tier);
  while (tier.over_cap() && shrink_step(tier, state)) {
    if (disk_.later) return disk_.later([this, &tier] { go_on_shrinking(tier); });
  }
  shrinking_.erase(&tier);
}

// False: no more can be done now.
bool BlockCache::shrink_step(MemoryTier& tier, Shrinking& state) {
  if (!tier.draining()) {
    if (choose_step(tier, state)) return true;
    if (!state.best) return false;
    tier.drain(*state.best);
    state = {};
  }
  return empty_step(tier, state);
}

// Looks for the extent with the fewest slots that must stay for now: reserved or quarantined ones
// and those of held blocks. True while there is more to look at; extents may come and go meanwhile.
bool BlockCache::choose_step(MemoryTier& tier, Shrinking& state) {
  if (!std::exchange(state.choosing, true)) {
    tier.each_extent([&](storage::Extent& extent) { state.left.push_back(extent.id()); });
  }
  const std::size_t t = index_of(tier.tier());
  for (std::uint32_t passed = 0; passed < limits::kWalkStep && !state.left.empty();) {
    const ExtentId id = state.left.back();
    const storage::Extent* extent = tier.extent(id);
    if (extent == nullptr) {
      state.left.pop_back();
      state.slot = 0;
      state.stay = 0;
      continue;
    }
    const std::uint32_t count =
        std::min(limits::kWalkStep - passed, extent->shape().slots() - state.slot);
    tier.each_block(id, state.slot, count, [&](BlockId block) {
      state.stay += catalogue_.block(block).holds[t] != 0 ? 1 : 0;
    });
    passed += count;
    state.slot += count;
    if (state.slot < extent->shape().slots()) return true;
    state.stay += tier.slots_without_block(id);
    if (!state.best || state.stay < state.best_stay) {
      state.best = id;
      state.best_stay = state.stay;
    }
    state.left.pop_back();
    state.slot = 0;
    state.stay = 0;
  }
  if (!state.left.empty()) return true;
  const bool gone = state.best && tier.extent(*state.best) == nullptr;
  if (gone) state = {};
  return gone;
}

// Evicts what nobody holds in the extent that is being emptied. True while there is more of it, or
// where it went and another may follow.
bool BlockCache::empty_step(MemoryTier& tier, Shrinking& state) {
  const ExtentId id = *tier.draining();
  const std::size_t t = index_of(tier.tier());
  const std::uint32_t slots = tier.extent(id)->shape().slots();
  if (std::exchange(state.emptying, id) != id) state.slot = 0;
  const std::uint32_t end = std::min(slots, state.slot + limits::kShrinkStep);
  for (; state.slot < end; ++state.slot) {
    const BlockId block = tier.block_at({id.value, state.slot});
    if (block != kNoBlock && catalogue_.block(block).holds[t] == 0)
      evict(tier, block, Removal::capacity);
  }
  if (state.slot < slots) return true;
  state = {};
  return tier.retire_extent(id);
}

}  // namespace kvtier::daemon
