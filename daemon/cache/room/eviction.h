// What may be evicted from a memory tier, and for whose sake. Owned by the control thread.
//
// Never a block that somebody holds, and never one whose going would leave a tenant with less than
// is guaranteed to it; an isolated tenant's slots serve nobody else. Of what may go, the block that
// was used longest ago goes first.
#pragma once

#include <cstdint>

#include "daemon/cache/room/placements.h"

namespace kvtier::daemon {

class Eviction {
 public:
  Eviction(Catalogue& catalogue, Placements& placements) noexcept
      : catalogue_(catalogue), placements_(placements) {}

  // Whether the evictions of `needy` may take `bytes` of what `from` has in this tier.
  bool may_take(const MemoryTier& tier, TenantId needy, TenantId from, std::uint64_t bytes) const {
    return catalogue_.tenants().may_take(needy, from, tier.tier(), tier.used_by(from), bytes);
  }
  // The coldest block of this size that may go for the tenant's sake, of its own ones too or of
  // others' alone; kNoBlock where there is none.
  BlockId victim(const MemoryTier& tier, TenantId tenant, std::uint64_t record_bytes,
                 bool own_too) const;
  // Whether nobody is left with less than is guaranteed when all that may be evicted in an extent
  // goes for the sake of `tenant`.
  bool may_evict_all_in(const MemoryTier& tier, ExtentId extent, TenantId tenant) const;
  // Whether all of an extent may go: besides, nobody uses it.
  bool may_empty(const MemoryTier& tier, ExtentId extent, TenantId tenant) const {
    return tier.use_of(extent).staying() == 0 && may_evict_all_in(tier, extent, tenant);
  }

  void evict(MemoryTier& tier, BlockId id, Removal why);

 private:
  Catalogue& catalogue_;
  Placements& placements_;
};

}  // namespace kvtier::daemon
