// Blocks in the slots of the memory tiers: how they get in and how they go. Owned by the control
// thread.
//
// That a block lies in a slot is said in three places, which always agree: the slot's table, which
// outlives the daemon, the tier, and the catalogue. They are changed together, here (and, before
// anything else happens, by Adoption). The namespace of every block in a slot is remembered, so
// that whoever finds the slot after this daemon can say what it holds. A block that is doomed goes
// with its last hold: whoever ends a hold settles the block.
//
// It decides nothing: what goes, and for whose sake, is the caller's (Eviction, BlockRemoval).
#pragma once

#include <cstdint>
#include <functional>

#include "daemon/cache/catalogue/catalogue.h"
#include "daemon/cache/remote/remote_tier.h"
#include "daemon/cache/tiers/disk_tier.h"
#include "daemon/cache/tiers/memory_tiers.h"

namespace kvtier::daemon {

class Placements {
 public:
  Placements(Catalogue& catalogue, MemoryTiers& memory, DiskTier& disk, RemoteTier& remote) noexcept
      : catalogue_(catalogue), memory_(memory), disk_(disk), remote_(remote) {}

  // The block's record is in this slot, which the tier has given out.
  void seal(BlockId id, MemoryTier& tier, Place at, const Key& parent);
  // It leaves a memory tier in which nobody holds it; its slot is free.
  void remove(BlockId id, Tier tier, Removal why);
  // The same for every tier, the disk's too; that it is in the remote one is forgotten.
  void remove_everywhere(BlockId id, Removal why);
  // Removes a doomed block once its last hold has ended; of one that is spoilt, each placement that
  // does not hold once nobody holds that.
  void settle(BlockId id);

  // The namespace is to be remembered by whoever outlives this daemon: a block of it is there, or
  // about to be. Once for each namespace.
  void remember(std::uint16_t ns);
  std::function<void(const KnownNamespace&)> on_namespace;

 private:
  Catalogue& catalogue_;
  MemoryTiers& memory_;
  DiskTier& disk_;
  RemoteTier& remote_;
};

}  // namespace kvtier::daemon
