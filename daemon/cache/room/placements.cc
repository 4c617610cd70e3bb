#include "daemon/cache/room/placements.h"

#include <utility>

namespace kvtier::daemon {

void Placements::seal(BlockId id, MemoryTier& tier, Place at, const Key& parent) {
  const Block& block = catalogue_.block(id);
  remember(block.ns);
  storage::SlotEntry entry{};
  entry.block_index = block.block_index;
  entry.ns = catalogue_.namespaces()[block.ns].id;
  entry.key = block.key;
  entry.parent = parent;
  entry.last_access = block.last_access;
  tier.table(at).set_sealed(at.slot, entry);
  tier.set_block(at, id);
  catalogue_.place(id, tier.tier(), at, parent);
}

void Placements::remove(BlockId id, Tier tier, Removal why) {
  const Place at = catalogue_.unplace(id, tier, why);
  MemoryTier& from = memory_.of(tier, at);
  from.set_block(at, kNoBlock);
  from.give_back(at);
}

void Placements::remove_everywhere(BlockId id, Removal why) {
  const TierSet tiers = catalogue_.block(id).tiers;
  // First, for with its last place the entry goes.
  if (tiers.has(Tier::remote)) remote_.forget(id);
  for (const Tier tier : kAllTiers) {
    if (!tiers.has(tier)) continue;
    if (tier == Tier::disk) {
      disk_.forget({&id, 1}, why);
    } else {
      remove(id, tier, why);
    }
  }
}

void Placements::settle(BlockId id) {
  const Block& block = catalogue_.block(id);
  if (const TierSet spoilt = block.spoilt(); !spoilt.empty()) {
    for (const Tier tier : {Tier::device, Tier::host}) {
      if (spoilt.has(tier) && block.holds[index_of(tier)] == 0)
        remove(id, tier, Removal::forgotten);
    }
    // With the last of them the block itself may have gone.
    if (spoilt.has(Tier::disk) && block.tiers.has(Tier::disk) &&
        block.holds[index_of(Tier::disk)] == 0) {
      disk_.forget({&id, 1}, Removal::io);
    }
    return;
  }
  if (block.doomed && !block.loading && Catalogue::unheld(block))
    remove_everywhere(id, Removal::forgotten);
}

void Placements::remember(std::uint16_t ns) {
  if (std::exchange(catalogue_.namespaces()[ns].remembered, true)) return;
  if (on_namespace) on_namespace(catalogue_.namespaces()[ns]);
  disk_.remember_namespace(ns);
}

}  // namespace kvtier::daemon
