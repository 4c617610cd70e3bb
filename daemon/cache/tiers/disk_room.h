// Room on the disks for records that are to be written: which device and slot one gets, and what
// goes for it. Owned by the control thread.
//
// A tenant never gets more than its quota, and is never refused what is guaranteed to it where
// others have it to give. A record goes to the online device with the smallest part of its capacity
// in use; where none has a free slot, over the block that was used longest ago and may go for the
// tenant's sake. Records of different sizes have segments of their own: where those of one size
// have no room, or go while others' have been unused for longer, a segment of the others is
// emptied. One at a time, in steps, and none in which anything must stay: what is held, what is
// being written, and a slot that is never to be used again keep a segment as it is.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "daemon/cache/catalogue/sampled_ages.h"
#include "daemon/cache/tiers/disk_devices.h"

namespace kvtier::daemon {

class DiskRoom {
 public:
  // All of these outlive this.
  DiskRoom(Catalogue& catalogue, DiskDevices& devices, const Later& later) noexcept
      : catalogue_(catalogue), devices_(devices), later_(later) {}

  struct Slot {
    std::uint32_t device;
    storage::DiskLocation at;
    std::optional<Key> replaces;  // whose entry on disk goes with the write
  };
  // None: not now. Then more() says whether there may be later. `keep` does not go for it: the last
  // block on disk before it in its prefix, without which it would be of no use.
  std::optional<Slot> find(TenantId tenant, std::uint64_t record_bytes, BlockId keep = kNoBlock);
  // Whether a segment is being emptied, this one's or another's, so that on_room follows.
  bool more(TenantId tenant, std::uint64_t record_bytes) {
    return emptying_ || empty_a_segment_for(tenant, record_bytes, kWhenever);
  }
  bool over_quota(TenantId tenant, std::uint64_t more_bytes) const noexcept;
  std::uint64_t allowance(TenantId tenant) const noexcept;
  // Evicts at most `blocks_max` of the tenant's blocks above its quota. Returns how many.
  std::uint32_t trim(TenantId tenant, std::uint32_t blocks_max);

 private:
  enum class Whose { own, others, all };
  BlockId coldest(TenantId tenant, std::uint64_t record_bytes, Whose whose, BlockId keep) const;
  BlockId other_than(BlockId keep, BlockId id) const noexcept;
  std::optional<Slot> free_slot(std::uint64_t record_bytes);
  Slot take_over(BlockId victim);
  bool evict_own(TenantId tenant, std::uint64_t record_bytes, BlockId keep);
  struct Segment {
    std::uint32_t device, number;
  };
  static constexpr std::uint64_t kWhenever = ~0ULL;
  bool empty_a_segment_for(TenantId tenant, std::uint64_t record_bytes, std::uint64_t used);
  std::optional<Segment> segment_to_empty(TenantId tenant, std::uint64_t record_bytes,
                                          std::uint64_t used);
  SampledAges ages_of(Segment segment, std::uint64_t used) const;
  void empty_segment(std::uint32_t number, std::uint32_t segment, std::uint32_t slot);
  bool may_empty(Segment segment, TenantId tenant) const;

  Catalogue& catalogue_;
  DiskDevices& devices_;
  const Later& later_;
  bool emptying_ = false;
  std::uint32_t look_from_ = 0;      // the segment
  std::uint32_t look_again_in_ = 0;  // writes over a block, before an older segment is looked for
};

}  // namespace kvtier::daemon
