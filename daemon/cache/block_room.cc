// Room: what has to go so that a record has a place, and whose.
#include <algorithm>
#include <utility>

#include "core/base/points.h"
#include "daemon/cache/block_cache.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

using Order = Catalogue::Order;

// Whether the evictions of `needy` may take `bytes` of what `from` has in this tier.
bool BlockCache::may_take(const MemoryTier& tier, TenantId needy, TenantId from,
                          std::uint64_t bytes) const {
  return catalogue_.tenants().may_take(needy, from, tier.tier(), tier.used_by(from), bytes);
}

// The coldest block of this size that may go for the tenant's sake.
BlockId BlockCache::victim(const MemoryTier& tier, TenantId tenant, std::uint64_t record_bytes,
                           bool own_too) const {
  const Pool pool = tier.pool_of(tenant);
  return catalogue_.coldest(tier.tier(), record_bytes, tier.device(), [&](const Order& order) {
    return tier.pool_of(order.tenant) == pool && (own_too || order.tenant != tenant) &&
           may_take(tier, tenant, order.tenant, record_bytes);
  });
}

std::optional<Place> BlockCache::room(MemoryTier& tier, TenantId tenant,
                                      std::uint64_t record_bytes) {
  if (!make_quota_room(tier, tenant, record_bytes)) return std::nullopt;
  if (auto free = tier.take(record_bytes, tenant)) return free;
  // What is guaranteed and not there yet comes from others, if they have it to give.
  const bool owed = tier.used_by(tenant) + record_bytes <= tier.limits(tenant).guaranteed;
  BlockId going = victim(tier, tenant, record_bytes, !owed);
  if (going == kNoBlock && owed) {
    if (empty_an_extent_for(tier, tenant, record_bytes)) return tier.take(record_bytes, tenant);
    going = victim(tier, tenant, record_bytes, true);
  }
  // More than one, where they are in an extent that is on its way out.
  for (std::uint32_t evicted = 0; going != kNoBlock && evicted < limits::kEvictionsForRoomMax;
       ++evicted) {
    evict(tier, going, Removal::capacity);
    if (auto free = tier.take(record_bytes, tenant)) return free;
    going = victim(tier, tenant, record_bytes, true);
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

// Whether nobody is left with less than is guaranteed when all that may be evicted in an extent
// goes for the sake of `tenant`.
bool BlockCache::may_evict_all_in(const MemoryTier& tier, ExtentId extent, TenantId tenant) const {
  const TenantUsage& there = tier.evictable_in(extent);
  for (TenantId of = 0; of < catalogue_.tenants().size(); ++of) {
    if (there.of(of) != 0 && !may_take(tier, tenant, of, there.of(of))) return false;
  }
  return true;
}

// Whether all of an extent may go: besides, nobody uses it.
bool BlockCache::may_empty(const MemoryTier& tier, ExtentId extent, TenantId tenant) const {
  return tier.use_of(extent).staying() == 0 && may_evict_all_in(tier, extent, tenant);
}

// Slots of one class (size and pool) have no room while others fill the tier: an extent of theirs
// that nobody uses is emptied and given back to the system, the one of the coldest block if
// possible. A large one takes several turns of the loop, and is of use to whoever asks then.
bool BlockCache::empty_an_extent_for(MemoryTier& tier, TenantId tenant,
                                     std::uint64_t record_bytes) {
  if (tier.over_cap()) return false;  // what is emptied is given back
  if (tier.draining()) {
    // One whose lent slots have come home, or that is being emptied.
    return may_empty(tier, *tier.draining(), tenant) && empty_in_steps(tier);
  }
  const auto chosen = extent_to_empty(tier, tenant, record_bytes);
  if (!chosen) return false;
  tier.drain(*chosen);
  return empty_in_steps(tier);
}

std::optional<ExtentId> BlockCache::extent_to_empty(MemoryTier& tier, TenantId tenant,
                                                    std::uint64_t record_bytes) {
  const std::size_t t = index_of(tier.tier());
  const Pool pool = tier.pool_of(tenant);
  // An isolated tenant's extents are bounded by its quota: others' would be of no use to it.
  const bool own_only = tier.pool_left(tenant) < record_bytes;
  const auto other_class = [&](std::uint64_t bytes, Pool of) {
    return (bytes != record_bytes || of != pool) && (!own_only || of == pool);
  };
  const auto may = [&](ExtentId id) { return may_empty(tier, id, tenant); };
  const auto idle = tier.idle_extent(other_class, may);
  if (!idle || tier.use_of(*idle).taken == 0) return idle;
  for (const BlockId id : catalogue_.ends(tier.tier(), [&](const Order& order) {
         return order.device == tier.device() &&
                other_class(order.record_bytes, tier.pool_of(order.tenant));
       })) {
    const ExtentId extent(catalogue_.block(id).places[t].container);
    if (may(extent)) return extent;
  }
  return idle;
}

// At most so many of the blocks in the extent that is being drained.
BlockCache::Emptied BlockCache::empty_some(MemoryTier& tier, Removal why) {
  const ExtentId id = *tier.draining();
  const std::uint32_t slots = tier.extent(id)->shape().slots();
  std::uint32_t& next = tier.drained_to();
  std::uint32_t evicted = 0;
  for (std::uint32_t looked = 0;
       next < slots && evicted < limits::kEmptyStep && looked < limits::kEmptyLookStep;
       ++next, ++looked) {
    const BlockId block = tier.block_at({id.value, next});
    if (block == kNoBlock || catalogue_.block(block).holds[index_of(tier.tier())] != 0) continue;
    evict(tier, block, why);
    ++evicted;
  }
  if (next < slots) return Emptied::more;
  next = 0;
  return tier.retire_extent(id) ? Emptied::gone : Emptied::stays;
}

// False: not now, perhaps later. What has been leased meanwhile keeps the extent.
bool BlockCache::empty_in_steps(MemoryTier& tier) {
  while (true) {
    switch (empty_some(tier, Removal::other_size)) {
      case Emptied::gone:
        return true;
      case Emptied::stays:
        tier.stop_draining();
        return false;
      case Emptied::more:
        if (!later) continue;
        if (std::exchange(tier.step_waits(), true)) return false;
        later([this, &tier] {
          tier.step_waits() = false;
          if (tier.draining() && !tier.over_cap() && empty_in_steps(tier) && on_room) on_room();
        });
        return false;
    }
  }
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
