#include "daemon/cache/tiers/disk_room.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/points.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

using Order = Catalogue::Order;
using storage::DiskLocation;

// A free slot; or else the slot of the coldest block of this size that may go for the tenant's
// sake, on whichever device it is. A tenant at its quota gets a slot of its own.
std::optional<DiskRoom::Slot> DiskRoom::find(TenantId tenant, std::uint64_t record_bytes,
                                             BlockId keep) {
  if (over_quota(tenant, record_bytes)) {
    const BlockId own = coldest(tenant, record_bytes, Whose::own, keep);
    if (own != kNoBlock && !over_quota(tenant, 0)) return take_over(own);
    if (!evict_own(tenant, record_bytes, keep)) return std::nullopt;
  }
  if (auto free = free_slot(record_bytes)) return free;
  // What is guaranteed and not there yet comes from others, if they have it to give.
  const bool owed = devices_.used_by(tenant) + record_bytes <=
                    catalogue_.tenants().limits(tenant, Tier::disk).guaranteed;
  BlockId victim = coldest(tenant, record_bytes, owed ? Whose::others : Whose::all, keep);
  if (victim == kNoBlock && owed) victim = coldest(tenant, record_bytes, Whose::own, keep);
  if (victim == kNoBlock) return std::nullopt;
  // This record takes the victim's slot all the same: the segment has gone only later.
  if (!emptying_ && look_again_in_-- == 0) {
    const bool begun =
        empty_a_segment_for(tenant, record_bytes, catalogue_.last_use_beside(victim, Tier::disk));
    look_again_in_ = begun ? 0 : limits::kAgesLookedAt;
  }
  return take_over(victim);
}

// The one after it in its order, in place of that which is to stay; none where that is what comes
// before it in its prefix, for then all else was used later.
BlockId DiskRoom::other_than(BlockId keep, BlockId id) const noexcept {
  if (id == kNoBlock || id != keep) return id;
  const BlockId next = catalogue_.other_than(id, Tier::disk);
  return next != kNoBlock && catalogue_.block(next).key == catalogue_.parent(keep) ? kNoBlock
                                                                                   : next;
}

BlockId DiskRoom::coldest(TenantId tenant, std::uint64_t record_bytes, Whose whose,
                          BlockId keep) const {
  BlockId victim = kNoBlock;
  for (std::uint32_t number = 0; number < devices_.size(); ++number) {
    const BlockId found = other_than(
        keep, catalogue_.coldest(Tier::disk, record_bytes, number, [&](const Order& order) {
          const bool own = order.tenant == tenant;
          return devices_.takes_records(order.device) &&
                 (whose == Whose::all || own == (whose == Whose::own)) &&
                 catalogue_.tenants().may_take(tenant, order.tenant, Tier::disk,
                                               devices_.used_by(order.tenant), record_bytes);
        }));
    if (found == kNoBlock) continue;
    if (victim == kNoBlock || catalogue_.last_use_beside(found, Tier::disk) <
                                  catalogue_.last_use_beside(victim, Tier::disk))
      victim = found;
  }
  return victim;
}

// The victim's slot; its entry on disk goes with the write that replaces it.
DiskRoom::Slot DiskRoom::take_over(BlockId victim) {
  const Key key = catalogue_.block(victim).key;
  const Place at = devices_.unplace(victim, Removal::capacity);
  KVTIER_POINT("daemon.disk.evicted");
  return Slot{device_of(at), location_of(at), key};
}

// From the online device with the smallest part of its capacity in use that has one.
std::optional<DiskRoom::Slot> DiskRoom::free_slot(std::uint64_t record_bytes) {
  std::uint32_t tried = ~devices_.online();
  while (true) {
    std::uint32_t best = limits::kDisksMax;
    for (std::uint32_t number = 0; number < devices_.size(); ++number) {
      // Of equal capacity all, so the bytes in use compare as the shares do.
      if ((tried >> number & 1) == 0 && devices_.takes_records(number) &&
          (best == limits::kDisksMax ||
           devices_[number].space().bytes_in_use() < devices_[best].space().bytes_in_use())) {
        best = number;
      }
    }
    if (best == limits::kDisksMax) return std::nullopt;
    if (const auto at = devices_[best].space().allocate(record_bytes)) return Slot{best, *at, {}};
    tried |= 1U << best;
  }
}

// ---- quotas

bool DiskRoom::over_quota(TenantId tenant, std::uint64_t more_bytes) const noexcept {
  const std::uint64_t quota = catalogue_.tenants().limits(tenant, Tier::disk).quota;
  return quota < devices_.cap_bytes() && devices_.used_by(tenant) + more_bytes > quota;
}

std::uint64_t DiskRoom::allowance(TenantId tenant) const noexcept {
  return std::min(devices_.cap_bytes(), catalogue_.tenants().limits(tenant, Tier::disk).quota);
}

// Makes room below the tenant's quota among its blocks of whatever size. Their slots are free once
// the index has forgotten them.
bool DiskRoom::evict_own(TenantId tenant, std::uint64_t record_bytes, BlockId keep) {
  for (std::uint32_t evicted = 0; over_quota(tenant, record_bytes); ++evicted) {
    const BlockId id = other_than(keep, catalogue_.coldest(Tier::disk, [&](const Order& order) {
      return order.tenant == tenant && devices_.is_online(order);
    }));
    if (id == kNoBlock || evicted == limits::kEvictionsForRoomMax) return false;
    devices_.forget({&id, 1}, Removal::quota);
  }
  return true;
}

std::uint32_t DiskRoom::trim(TenantId tenant, std::uint32_t blocks_max) {
  std::vector<BlockId> going;
  std::uint64_t used = devices_.used_by(tenant);
  const std::uint64_t allowed = allowance(tenant);
  const auto of_tenant = [&](const Order& order) {
    return order.tenant == tenant && devices_.is_online(order);
  };
  // Along one order, the coldest one's; the next time it may be another.
  BlockId id = used > allowed ? catalogue_.coldest(Tier::disk, of_tenant) : kNoBlock;
  if (id != kNoBlock) id = catalogue_.oldest_beside(id, Tier::disk);
  for (; id != kNoBlock && used > allowed && going.size() < blocks_max;
       id = catalogue_.evicted_after(id, Tier::disk)) {
    going.push_back(id);
    used -= catalogue_.record_bytes(id);
  }
  if (!going.empty()) devices_.forget(going, Removal::quota);
  return static_cast<std::uint32_t>(going.size());
}

// ---- segments of another size

// Whether all of a segment may go for the sake of `tenant`: nobody is left with less than is
// guaranteed.
bool DiskRoom::may_empty(Segment segment, TenantId tenant) const {
  const DiskDevice& on = devices_[segment.device];
  if (!on.can_be_emptied(segment.number)) return false;
  if (catalogue_.tenants().size() == 1) return true;
  TenantUsage there;
  for (const BlockId id : on.blocks_in(segment.number)) {
    if (id != kNoBlock) there.add(catalogue_.tenant(id), catalogue_.record_bytes(id));
  }
  for (TenantId of = 0; of < catalogue_.tenants().size(); ++of) {
    if (there.of(of) != 0 && !catalogue_.tenants().may_take(tenant, of, Tier::disk,
                                                            devices_.used_by(of), there.of(of))) {
      return false;
    }
  }
  return true;
}

SampledAges DiskRoom::ages_of(Segment segment, std::uint64_t used) const {
  const std::vector<BlockId>& slots = devices_[segment.device].blocks_in(segment.number);
  return sampled_ages(catalogue_, static_cast<std::uint32_t>(slots.size()), used,
                      [&](std::uint32_t slot) { return slots[slot]; });
}

// The segment of the coldest block of another size, if that can be emptied, or else the oldest of
// some that can, others with every call.
std::optional<DiskRoom::Segment> DiskRoom::segment_to_empty(TenantId tenant,
                                                            std::uint64_t record_bytes,
                                                            std::uint64_t used) {
  for (const BlockId id : catalogue_.ends(Tier::disk, [&](const Order& order) {
         return order.record_bytes != record_bytes && devices_.takes_records(order.device);
       })) {
    if (catalogue_.last_use_beside(id, Tier::disk) >= used) break;
    const Place at = devices_.place_of(id);
    const Segment its{device_of(at), location_of(at).segment};
    if (may_empty(its, tenant) && ages_of(its, used).mostly_older()) return its;
    const DiskDevice& on = devices_[its.device];
    std::optional<Segment> oldest;
    std::uint64_t when = kWhenever;
    const std::uint32_t looked = std::min(on.segments(), limits::kSegmentsLookedAt);
    for (std::uint32_t i = 0; i < looked; ++i) {
      const Segment segment{its.device, look_from_++ % on.segments()};
      if (on.space().slot_bytes_of(segment.number) != catalogue_.record_bytes(id) ||
          !may_empty(segment, tenant)) {
        continue;
      }
      const SampledAges ages = ages_of(segment, used);
      if (ages.mostly_older() && ages.mean() < when) {
        when = ages.mean();
        oldest = segment;
      }
    }
    if (oldest) return oldest;
  }
  return std::nullopt;
}

// Records of one size have no room while others fill the disk, which were last used before `used`.
// A tenant at its quota has no room without.
bool DiskRoom::empty_a_segment_for(TenantId tenant, std::uint64_t record_bytes,
                                   std::uint64_t used) {
  if (over_quota(tenant, record_bytes)) return false;
  const auto chosen = segment_to_empty(tenant, record_bytes, used);
  if (!chosen) return false;
  emptying_ = true;
  empty_segment(chosen->device, chosen->number, 0);
  return true;
}

// From this slot on, in steps: it may have tens of thousands. What comes to be read meanwhile
// stays.
void DiskRoom::empty_segment(std::uint32_t number, std::uint32_t segment, std::uint32_t slot) {
  DiskDevice& on = devices_[number];
  if (!on.online()) {
    emptying_ = false;
    return devices_.on_room();
  }
  std::vector<Key> keys;
  std::vector<DiskLocation> slots;
  const std::vector<BlockId>& there = on.blocks_in(segment);
  const auto all = static_cast<std::uint32_t>(there.size());
  const std::uint32_t end = later_ ? std::min(all, slot + limits::kShrinkStep) : all;
  for (; slot < end; ++slot) {
    const BlockId id = there[slot];
    if (id == kNoBlock || catalogue_.block(id).holds[index_of(Tier::disk)] != 0) continue;
    keys.push_back(catalogue_.block(id).key);
    slots.push_back(location_of(devices_.unplace(id, Removal::other_size)));
  }
  if (end < all) {
    on.erase(std::move(keys), std::move(slots));
    return later_([this, number, segment, end] { empty_segment(number, segment, end); });
  }
  on.erase(std::move(keys), std::move(slots), [this] {
    KVTIER_POINT("daemon.segment.emptied");
    emptying_ = false;
    devices_.on_room();
  });
}

}  // namespace kvtier::daemon
