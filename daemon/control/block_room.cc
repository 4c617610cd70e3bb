// Room: what has to go so that a record has a place, and whose.
#include <algorithm>

#include "client/base/points.h"
#include "daemon/control/block_cache.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

using Order = Catalogue::Order;

// Whether the evictions of `needy` may take `bytes` of what `from` has in this tier.
bool BlockCache::may_take(const MemoryTier& tier, TenantId needy, TenantId from,
                          std::uint64_t bytes) const {
  return catalogue_.tenants().may_take(needy, from, tier.tier(), tier.used_by(from), bytes);
}

std::optional<Place> BlockCache::room(MemoryTier& tier, TenantId tenant,
                                      std::uint64_t record_bytes) {
  if (!make_quota_room(tier, tenant, record_bytes)) return std::nullopt;
  if (auto free = tier.take(record_bytes, tenant)) return free;
  const Pool pool = tier.pool_of(tenant);
  const auto victim_of = [&](bool own_too) {
    return catalogue_.coldest(tier.tier(), record_bytes, tier.device(), [&](const Order& order) {
      return tier.pool_of(order.tenant) == pool && (own_too || order.tenant != tenant) &&
             may_take(tier, tenant, order.tenant, record_bytes);
    });
  };
  // What is guaranteed and not there yet comes from others, if they have it to give.
  const bool owed = tier.used_by(tenant) + record_bytes <= tier.limits(tenant).guaranteed;
  BlockId victim = victim_of(!owed);
  if (victim == kNoBlock && owed) {
    if (empty_an_extent_for(tier, tenant, record_bytes)) return tier.take(record_bytes, tenant);
    victim = victim_of(true);
  }
  if (victim != kNoBlock) {
    evict(tier, victim, Removal::capacity);
    return tier.take(record_bytes, tenant);
  }
  if (empty_an_extent_for(tier, tenant, record_bytes)) return tier.take(record_bytes, tenant);
  return std::nullopt;
}

// A tenant at its quota makes room among its own blocks, of the wanted size if it can.
bool BlockCache::make_quota_room(MemoryTier& tier, TenantId tenant, std::uint64_t record_bytes) {
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
    evict(tier, victim, Removal::quota);
  }
  return true;
}

void BlockCache::evict(MemoryTier& tier, BlockId id, Removal why) {
  remove_from(id, tier.tier(), why);
  KVTIER_POINT("daemon.memory.evicted");
}

// Whether all of an extent may go for the sake of `tenant`: nobody uses it, and nobody is left with
// less than is guaranteed.
bool BlockCache::may_empty(MemoryTier& tier, storage::Extent& extent, TenantId tenant) {
  TenantUsage there;
  for (std::uint32_t slot = 0; slot < extent.shape().slots(); ++slot) {
    const auto state = extent.table().entry(slot).state;
    if (state == storage::SlotState::free) continue;
    if (state != storage::SlotState::sealed) return false;
    const BlockId id = tier.block_at({extent.id().value, slot});
    if (catalogue_.block(id).holds[index_of(tier.tier())] != 0) return false;
    there.add(catalogue_.tenant(id), extent.shape().slot_bytes);
  }
  for (TenantId of = 0; of < catalogue_.tenants().size(); ++of) {
    if (there.of(of) != 0 && !may_take(tier, tenant, of, there.of(of))) return false;
  }
  return true;
}

// Slots of one class (size and pool) have no room while others fill the tier: an extent of theirs
// that nobody uses is emptied and given back to the system, the one of the coldest block if
// possible.
bool BlockCache::empty_an_extent_for(MemoryTier& tier, TenantId tenant,
                                     std::uint64_t record_bytes) {
  const std::size_t t = index_of(tier.tier());
  const Pool pool = tier.pool_of(tenant);
  // An isolated tenant's extents are bounded by its quota: others' would be of no use to it.
  const bool own_only = tier.pool_left(tenant) < record_bytes;
  const auto other_class = [&](std::uint64_t bytes, Pool of) {
    return (bytes != record_bytes || of != pool) && (!own_only || of == pool);
  };
  storage::Extent* chosen = nullptr;
  for (const BlockId id : catalogue_.ends(tier.tier(), [&](const Order& order) {
         return order.device == tier.device() &&
                other_class(order.record_bytes, tier.pool_of(order.tenant));
       })) {
    storage::Extent* extent = tier.extent(ExtentId(catalogue_.block(id).places[t].container));
    if (!may_empty(tier, *extent, tenant)) continue;
    chosen = extent;
    break;
  }
  if (chosen == nullptr) {
    tier.each_extent([&](storage::Extent& extent) {
      if (chosen != nullptr || !other_class(extent.shape().slot_bytes, tier.pool_of(extent.id())))
        return;
      if (may_empty(tier, extent, tenant)) chosen = &extent;
    });
  }
  if (chosen == nullptr) return false;
  for (std::uint32_t slot = 0; slot < chosen->shape().slots(); ++slot) {
    const BlockId id = tier.block_at({chosen->id().value, slot});
    if (id != kNoBlock) evict(tier, id, Removal::other_size);
  }
  return tier.retire_extent(chosen->id());
}

// The least recently used block that nobody holds anywhere, and that may go for the tenant's sake
// from wherever it is, leaves every tier.
bool BlockCache::make_index_room(TenantId tenant) {
  const auto may_go = [&](BlockId id) {
    const Block& block = catalogue_.block(id);
    if (!Catalogue::unheld(block)) return false;
    const TenantId of = catalogue_.tenant(id);
    const std::uint64_t bytes = catalogue_.record_bytes(id);
    return std::ranges::all_of(kAllTiers, [&](Tier tier) {
      if (!block.tiers.has(tier)) return true;
      if (tier != Tier::disk)
        return may_take(memory(tier, block.places[index_of(tier)]), tenant, of, bytes);
      return catalogue_.tenants().may_take(tenant, of, tier, disk_.used_by(of), bytes);
    });
  };
  for (const Tier tier : {Tier::disk, Tier::host, Tier::device}) {
    for (const BlockId id : catalogue_.ends(tier, [](const Order&) { return true; })) {
      if (!may_go(id)) continue;
      remove_everywhere(id, Removal::index_full);
      return true;
    }
  }
  return false;
}

Result<void> BlockCache::set_limits(TenantId tenant, Tier tier, TenantLimits limits) {
  if (limits.guaranteed > limits.quota)
    return make_error(Errc::invalid, "more is guaranteed than the quota: lower one of them");
  Tenants& tenants = catalogue_.tenants();
  std::uint64_t left = tier == Tier::disk ? disk_.cap_bytes() : memory(tier).cap_bytes();
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

// A few thousand blocks at a time: what is above a quota that was lowered, or that a restart found.
void BlockCache::trim() {
  std::uint32_t left = limits::kTrimStep;
  const auto trim_memory = [&](MemoryTier& tier, TenantId tenant) {
    while (left > 0 && tier.used_by(tenant) > tier.allowance(tenant)) {
      const BlockId id = catalogue_.coldest(tier.tier(), [&](const Order& order) {
        return order.tenant == tenant && order.device == tier.device();
      });
      if (id == kNoBlock) return;
      evict(tier, id, Removal::quota);
      --left;
    }
  };
  for (TenantId tenant = 0; tenant < catalogue_.tenants().size(); ++tenant) {
    trim_memory(host_, tenant);
    for (const auto& device : devices_) trim_memory(*device, tenant);
    left -= disk_.trim(tenant, left);
  }
}

}  // namespace kvtier::daemon
