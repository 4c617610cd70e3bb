#include "daemon/cache/block_removal.h"

#include <vector>

namespace kvtier::daemon {

void BlockRemoval::remove(std::span<const BlockId> blocks, TierSet tiers, bool force,
                          Removed& removed, Removal why) {
  std::vector<BlockId> on_disk;
  if (tiers.has(Tier::remote)) remote_.erase(blocks);
  for (const BlockId id : blocks) {
    if (force) {
      pins_.unpin_everywhere(id);
      catalogue_.doom(id);
    }
    const Block block = catalogue_.block(id);
    bool any = tiers.has(Tier::remote) && block.tiers.has(Tier::remote);
    // First, for with its last place the entry goes.
    if (any) remote_.forget(id);
    bool in_use = false;
    bool pinned = false;
    for (const Tier tier : kAllTiers) {
      if (!tiers.has(tier) || !block.tiers.has(tier)) continue;
      const unsigned holds = block.holds[index_of(tier)];
      const unsigned pins = block.pinned.has(tier) ? 1 : 0;
      in_use = in_use || holds > pins;
      pinned = pinned || (pins != 0 && holds == pins);
      if (holds != 0) continue;
      any = true;
      if (tier == Tier::disk) {
        on_disk.push_back(id);
      } else {
        placements_.remove(id, tier, why);
      }
    }
    removed.blocks += any ? 1 : 0;
    removed.in_use += in_use ? 1 : 0;
    removed.pinned += pinned && !in_use ? 1 : 0;
  }
  disk_.forget(on_disk, why);
}

std::uint64_t BlockRemoval::drop(std::optional<std::uint16_t> ns, TierSet tiers, Removal why) {
  std::vector<BlockId> blocks;
  catalogue_.each([&](BlockId id) {
    const Block& block = catalogue_.block(id);
    if (!ns || block.ns == *ns) blocks.push_back(id);
    return true;
  });
  Removed removed;
  remove(blocks, tiers, false, removed, why);
  return removed.blocks;
}

}  // namespace kvtier::daemon
