#include "daemon/cache/room/room.h"

#include <algorithm>
#include <string>

#include "daemon/limits.h"

namespace kvtier::daemon {

using Order = Catalogue::Order;

std::optional<Place> Room::slot(MemoryTier& tier, TenantId tenant, std::uint64_t record_bytes) {
  if (!make_quota_room(tier, tenant, record_bytes)) return std::nullopt;
  if (auto free = tier.take(record_bytes, tenant)) return free;
  // What is guaranteed and not there yet comes from others, if they have it to give.
  const bool owed = tier.used_by(tenant) + record_bytes <= tier.limits(tenant).guaranteed;
  BlockId going = eviction_.victim(tier, tenant, record_bytes, !owed);
  if (going == kNoBlock && owed) {
    if (emptying_.empty_one_for(tier, tenant, record_bytes)) return tier.take(record_bytes, tenant);
    going = eviction_.victim(tier, tenant, record_bytes, true);
  }
  if (going != kNoBlock &&
      emptying_.empty_an_older_one_for(tier, tenant, record_bytes,
                                       catalogue_.last_use_beside(going, tier.tier()))) {
    if (auto free = tier.take(record_bytes, tenant)) return free;
  }
  // More than one, where they are in an extent that is on its way out.
  for (std::uint32_t evicted = 0; going != kNoBlock && evicted < limits::kEvictionsForRoomMax;
       ++evicted) {
    eviction_.evict(tier, going, Removal::capacity);
    if (auto free = tier.take(record_bytes, tenant)) return free;
    going = eviction_.victim(tier, tenant, record_bytes, true);
  }
  if (emptying_.empty_one_for(tier, tenant, record_bytes)) return tier.take(record_bytes, tenant);
  return std::nullopt;
}

// A tenant at its quota makes room among its own blocks, of the wanted size if it can.
bool Room::make_quota_room(MemoryTier& tier, TenantId tenant, std::uint64_t record_bytes) {
  const std::uint64_t allowed = tier.limits(tenant).quota;
  if (allowed >= tier.cap_bytes()) return true;
  if (record_bytes > allowed) return false;
  for (std::uint32_t evicted = 0; tier.used_by(tenant) > allowed - record_bytes; ++evicted) {
    const auto own = [&](const Order& order) {
      return order.tenant == tenant && order.device == tier.device();
    };
    BlockId victim = catalogue_.coldest(tier.tier(), record_bytes, tier.device(), own);
    if (victim == kNoBlock) victim = catalogue_.coldest(tier.tier(), own);
    if (victim == kNoBlock || evicted == limits::kEvictionsForRoomMax) return false;
    eviction_.evict(tier, victim, Removal::quota);
  }
  return true;
}

bool Room::index_entry(TenantId tenant) {
  if (const BlockId known = catalogue_.oldest_only_remote(); known != kNoBlock) {
    catalogue_.unset_remote(known);
    return true;
  }
  const auto may_go = [&](BlockId id) {
    const Block& block = catalogue_.block(id);
    if (!Catalogue::unheld(block)) return false;
    const TenantId of = catalogue_.tenant(id);
    const std::uint64_t bytes = catalogue_.record_bytes(id);
    return std::ranges::all_of(kAllTiers, [&](Tier tier) {
      if (!block.tiers.has(tier)) return true;
      if (tier != Tier::disk) {
        const MemoryTier& in = memory_.of(tier, block.places[index_of(tier)]);
        return eviction_.may_take(in, tenant, of, bytes);
      }
      return catalogue_.tenants().may_take(tenant, of, tier, disk_.used_by(of), bytes);
    });
  };
  for (const Tier tier : {Tier::disk, Tier::host, Tier::device}) {
    for (const BlockId id : catalogue_.ends(tier, [](const Order&) { return true; })) {
      if (!may_go(id)) continue;
      placements_.remove_everywhere(id, Removal::index_full);
      return true;
    }
  }
  return false;
}

Result<void> Room::set_limits(TenantId tenant, Tier tier, TenantLimits limits) {
  if (limits.guaranteed > limits.quota)
    return make_error(Errc::invalid, "more is guaranteed than the quota: lower one of them");
  Tenants& tenants = catalogue_.tenants();
  std::uint64_t left =
      tier == Tier::disk ? disk_.cap_bytes() : memory_.of(tier, std::uint32_t{0}).cap_bytes();
  for (TenantId of = 0; of < tenants.size(); ++of) {
    const std::uint64_t least =
        of == tenant ? limits.guaranteed : tenants.limits(of, tier).guaranteed;
    if (least > left) {
      return make_error(Errc::invalid,
                        "more than all of the tier would be guaranteed: " + std::to_string(left) +
                            " bytes are left for '" + tenants[of].name + "'");
    }
    left -= least;
  }
  tenants.set_limits(tenant, tier, limits);
  return {};
}

// A few thousand blocks at a time.
void Room::trim() {
  std::uint32_t left = limits::kTrimStep;
  for (TenantId tenant = 0; tenant < catalogue_.tenants().size(); ++tenant) {
    memory_.each([&](MemoryTier& tier) {
      while (left > 0 && tier.used_by(tenant) > tier.allowance(tenant)) {
        const BlockId id = catalogue_.coldest(tier.tier(), [&](const Order& order) {
          return order.tenant == tenant && order.device == tier.device();
        });
        if (id == kNoBlock) return;
        eviction_.evict(tier, id, Removal::quota);
        --left;
      }
    });
    left -= disk_.trim(tenant, left);
  }
}

}  // namespace kvtier::daemon
