#include "daemon/cache/room/eviction.h"

#include "core/base/points.h"

namespace kvtier::daemon {

BlockId Eviction::victim(const MemoryTier& tier, TenantId tenant, std::uint64_t record_bytes,
                         bool own_too) const {
  const Pool pool = tier.pool_of(tenant);
  const auto may = [&](const Catalogue::Order& order) {
    return tier.pool_of(order.tenant) == pool && (own_too || order.tenant != tenant) &&
           may_take(tier, tenant, order.tenant, record_bytes);
  };
  return catalogue_.coldest(tier.tier(), record_bytes, tier.device(), may);
}

bool Eviction::may_evict_all_in(const MemoryTier& tier, ExtentId extent, TenantId tenant) const {
  const TenantUsage& there = tier.evictable_in(extent);
  for (TenantId of = 0; of < catalogue_.tenants().size(); ++of) {
    if (there.of(of) != 0 && !may_take(tier, tenant, of, there.of(of))) return false;
  }
  return true;
}

void Eviction::evict(MemoryTier& tier, BlockId id, Removal why) {
  placements_.remove(id, tier.tier(), why);
  KVTIER_POINT("daemon.memory.evicted");
}

}  // namespace kvtier::daemon
