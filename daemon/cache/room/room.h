// Room: a slot for a record that is to come, in the memory tiers, and an entry in the index, by
// letting others go where there is none. Owned by the control thread.
//
// A tenant never has more than its quota, and is never refused what is guaranteed to it where
// others have it to give. In this order: within its quota by evicting its own, a free slot, the
// coldest block of the size that may go, an extent of another size. Nothing here waits: where room
// takes turns of the loop to make, there is none now.
#pragma once

#include <cstdint>
#include <optional>

#include "daemon/cache/room/emptying.h"
#include "kvtier/result.h"

namespace kvtier::daemon {

class Room {
 public:
  Room(Catalogue& catalogue, MemoryTiers& memory, DiskTier& disk, Placements& placements,
       Eviction& eviction, Emptying& emptying) noexcept
      : catalogue_(catalogue),
        memory_(memory),
        disk_(disk),
        placements_(placements),
        eviction_(eviction),
        emptying_(emptying) {}

  // A slot of this size for the tenant, as MemoryTier::take() gives it, or none.
  std::optional<Place> slot(MemoryTier& tier, TenantId tenant, std::uint64_t record_bytes);
  // The index is full: an entry that is in the remote tier alone goes, or the least recently used
  // block that nobody holds anywhere, and that may go for the tenant's sake from wherever it is,
  // leaves every tier. False where there is none.
  bool index_entry(TenantId tenant);

  // What the tenant has above the new quota goes with trim() and as it needs room. Errors: invalid
  // (guarantees that do not fit quota or tier).
  Result<void> set_limits(TenantId tenant, Tier tier, TenantLimits limits);
  // About once a second: some of what tenants have above their quotas goes, which were lowered, or
  // which a restart found exceeded.
  void trim();

 private:
  bool make_quota_room(MemoryTier& tier, TenantId tenant, std::uint64_t record_bytes);

  Catalogue& catalogue_;
  MemoryTiers& memory_;
  DiskTier& disk_;
  Placements& placements_;
  Eviction& eviction_;
  Emptying& emptying_;
};

}  // namespace kvtier::daemon
