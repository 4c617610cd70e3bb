#include "daemon/cache/room/emptying.h"

#include <utility>

#include "daemon/cache/catalogue/sampled_ages.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

using Order = Catalogue::Order;

void Emptying::drain(MemoryTier& tier, ExtentId id) {
  if (tier.draining() == id) return;
  tier.drain(id);
  Leaving& extent = leaving(tier);
  extent.next = 0;
  extent.for_cap = false;
}

// ---- for another size

bool Emptying::empty_one_for(MemoryTier& tier, TenantId tenant, std::uint64_t record_bytes) {
  if (tier.over_cap()) return false;  // what is emptied is given back
  if (tier.draining()) {
    // One whose lent slots have come home, or that is being emptied.
    return eviction_.may_empty(tier, *tier.draining(), tenant) && empty_in_steps(tier);
  }
  const auto chosen = extent_to_empty(tier, tenant, record_bytes);
  if (!chosen) return false;
  drain(tier, *chosen);
  return empty_in_steps(tier);
}

// One with a block that a hint keeps only where there is no other.
std::optional<ExtentId> Emptying::extent_to_empty(MemoryTier& tier, TenantId tenant,
                                                  std::uint64_t record_bytes) {
  const auto chosen = extent_to_empty(tier, tenant, record_bytes, false);
  return chosen ? chosen : extent_to_empty(tier, tenant, record_bytes, true);
}

std::optional<ExtentId> Emptying::extent_to_empty(MemoryTier& tier, TenantId tenant,
                                                  std::uint64_t record_bytes, bool kept_too) {
  const std::size_t t = index_of(tier.tier());
  const Pool pool = tier.pool_of(tenant);
  // An isolated tenant's extents are bounded by its quota: others' would be of no use to it.
  const bool own_only = tier.pool_left(tenant) < record_bytes;
  const auto other_class = [&](std::uint64_t bytes, Pool of) {
    return (bytes != record_bytes || of != pool) && (!own_only || of == pool);
  };
  const auto may = [&](ExtentId id) {
    return (kept_too || tier.kept_in(id) == 0) && eviction_.may_empty(tier, id, tenant);
  };
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

bool Emptying::empty_an_older_one_for(MemoryTier& tier, TenantId tenant, std::uint64_t record_bytes,
                                      std::uint64_t used) {
  if (tier.over_cap() || tier.draining()) return false;
  std::uint32_t& wait = leaving(tier).look_again_in;
  if (wait > 0) return --wait, false;
  const auto chosen = older_extent(tier, tenant, record_bytes, used);
  if (!chosen) return false;
  drain(tier, *chosen);
  return empty_in_steps(tier);
}

// Looking costs a few entries of the index, which so many evictions then share.
std::optional<ExtentId> Emptying::older_extent(MemoryTier& tier, TenantId tenant,
                                               std::uint64_t record_bytes, std::uint64_t used) {
  const std::size_t t = index_of(tier.tier());
  const Pool pool = tier.pool_of(tenant);
  const auto other_size = [&](std::uint64_t bytes, Pool of) {
    return bytes != record_bytes && of == pool;
  };
  BlockId coldest = catalogue_.coldest(tier.tier(), [&](const Order& order) {
    return order.device == tier.device() &&
           other_size(order.record_bytes, tier.pool_of(order.tenant));
  });
  if (coldest != kNoBlock) coldest = catalogue_.oldest_beside(coldest, tier.tier());
  if (coldest == kNoBlock || catalogue_.block(coldest).last_access >= used) return std::nullopt;
  std::uint32_t& looked = leaving(tier).look_again_in;
  const auto may = [&](ExtentId id) {
    if (tier.kept_in(id) != 0 || !eviction_.may_empty(tier, id, tenant)) return false;
    looked += limits::kAgesLookedAt;
    return sampled_ages(catalogue_, tier.slots_of(id), used,
                        [&](std::uint32_t slot) {
                          return tier.block_at({id.value, slot});
                        })
        .mostly_older();
  };
  const ExtentId its(catalogue_.block(coldest).places[t].container);
  const auto chosen = may(its) ? std::optional(its) : tier.idle_extent(other_size, may);
  if (chosen) looked = 0;
  return chosen;
}

// At most so many of the blocks in the extent that is on its way out.
Emptying::Emptied Emptying::empty_some(MemoryTier& tier, Removal why) {
  const ExtentId id = *tier.draining();
  const std::uint32_t slots = tier.extent(id)->shape().slots();
  std::uint32_t& next = leaving(tier).next;
  std::uint32_t evicted = 0;
  for (std::uint32_t looked = 0;
       next < slots && evicted < limits::kEmptyStep && looked < limits::kEmptyLookStep;
       ++next, ++looked) {
    const BlockId block = tier.block_at({id.value, next});
    if (block == kNoBlock || catalogue_.block(block).holds[index_of(tier.tier())] != 0) continue;
    eviction_.evict(tier, block, why);
    ++evicted;
  }
  if (next < slots) return Emptied::more;
  next = 0;
  return tier.retire_extent(id) ? Emptied::gone : Emptied::stays;
}

// False: not now, perhaps later. What has been leased meanwhile keeps the extent.
bool Emptying::empty_in_steps(MemoryTier& tier) {
  while (true) {
    switch (empty_some(tier, Removal::other_size)) {
      case Emptied::gone:
        return true;
      case Emptied::stays:
        tier.stop_draining();
        return false;
      case Emptied::more:
        if (!later_) continue;
        if (std::exchange(leaving(tier).step_waits, true)) return false;
        later_([this, &tier] {
          leaving(tier).step_waits = false;
          if (tier.draining() && !tier.over_cap() && empty_in_steps(tier) && on_room) on_room();
        });
        return false;
    }
  }
}

// ---- once slots have come home

std::optional<ExtentId> Emptying::await_loans_for(MemoryTier& tier, TenantId tenant,
                                                  std::uint64_t record_bytes) {
  if (!tier.draining()) {
    if (const auto extent = extent_to_await(tier, tenant, record_bytes)) drain(tier, *extent);
  }
  return tier.draining();
}

// Of another class, where nothing but slots that are lent keeps it from being emptied; the one with
// the fewest of them.
std::optional<ExtentId> Emptying::extent_to_await(MemoryTier& tier, TenantId tenant,
                                                  std::uint64_t record_bytes) const {
  const Pool pool = tier.pool_of(tenant);
  const bool own_only = tier.pool_left(tenant) < record_bytes;
  std::optional<ExtentId> best;
  std::uint32_t fewest = ~0U;
  tier.each_extent([&](const storage::Extent& extent) {
    const auto use = tier.use_of(extent.id());
    const Pool of = tier.pool_of(extent.id());
    if (use.staying() != use.lent || use.lent == 0 || use.lent >= fewest) return;
    if ((extent.shape().slot_bytes == record_bytes && of == pool) || (own_only && of != pool))
      return;
    if (!eviction_.may_evict_all_in(tier, extent.id(), tenant)) return;
    best = extent.id();
    fewest = use.lent;
  });
  return best;
}

void Emptying::stop_awaiting_loans() {
  memory_.each([this](MemoryTier& tier) {
    // One that is being emptied in steps goes on to be.
    if (!tier.over_cap() && !leaving(tier).step_waits) tier.stop_draining();
  });
}

// ---- for a lowered cap

bool Emptying::shrink() {
  bool any = false;
  shrink_goes_on_ = false;
  memory_.each([&](MemoryTier& tier) {
    if (tier.over_cap()) {
      any = true;
      shrink(tier);
    } else if (leaving(tier).for_cap) {
      tier.stop_draining();
    }
  });
  return any;
}

void Emptying::shrink(MemoryTier& tier) {
  const auto id = easiest_to_empty(tier);
  if (!id) return;
  drain(tier, *id);
  leaving(tier).for_cap = true;
  const auto before = tier.use_of(*id).taken;
  switch (empty_some(tier, Removal::capacity)) {
    case Emptied::gone:
    case Emptied::more:
      shrink_goes_on_ = true;
      break;
    case Emptied::stays:
      shrink_goes_on_ = shrink_goes_on_ || tier.use_of(*id).taken != before;
  }
}

// The one with the fewest slots that must stay for now: reserved or quarantined ones and those of
// held blocks. Of equal ones, the one that is being emptied already.
std::optional<ExtentId> Emptying::easiest_to_empty(MemoryTier& tier) const {
  std::optional<ExtentId> best = tier.draining();
  std::uint32_t fewest = best ? tier.use_of(*best).staying() : ~0U;
  tier.each_extent([&](const storage::Extent& extent) {
    const std::uint32_t staying = tier.use_of(extent.id()).staying();
    if (staying >= fewest) return;
    best = extent.id();
    fewest = staying;
  });
  return best;
}

}  // namespace kvtier::daemon
