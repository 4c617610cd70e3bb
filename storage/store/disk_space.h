// Which slots of which segments are free: plain bookkeeping on the control thread, no I/O.
//
// A segment is one file of `segment_bytes`, cut into slots of one size. A segment with no slot in
// use can be given to another slot size. The sum of all segments never passes the capacity. Of a
// segment with bad places the slots that have a part of one are left out, whatever its slot size.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "storage/store/record_store.h"

namespace kvtier::storage {

class DiskSpace {
 public:
  // capacity_bytes: for segments only.
  DiskSpace(std::uint64_t capacity_bytes, std::uint64_t segment_bytes);

  // A free slot for records of `slot_bytes`; none if every segment of that size is full and no
  // segment can be added or converted.
  std::optional<DiskLocation> allocate(std::uint64_t slot_bytes);
  void free(DiskLocation at);
  // Takes a slot that recovery found in use. Errors: corrupt (already taken, another size, past the
  // cap).
  Result<void> claim(DiskLocation at, std::uint64_t slot_bytes);
  // A slot that must not be used again in this process, for a reason that is not the place's.
  void retire(DiskLocation at);
  // No slot with a part of this place is given out any more, nor claimed: one that is in use is
  // left out once it is free.
  void mark_bad(const BadPlace& place);

  std::uint64_t slot_bytes_of(std::uint32_t segment) const;
  // Of a segment's slots: in use, and never to be used again.
  struct Use {
    std::uint32_t in_use = 0, retired = 0;
  };
  Use use_of(std::uint32_t segment) const;
  std::uint64_t bad_bytes() const noexcept;     // of bad places
  std::uint64_t bytes_in_use() const noexcept;  // slots in use
  std::uint64_t bytes_taken() const noexcept;   // whole segments
  std::uint64_t capacity_bytes() const noexcept;

 private:
  // A segment belongs to at most one class, that of its slot size. Lists by id, lowest first:
  // `with_room` has every segment of a class that has a free slot, `empty_` every one of any class
  // that may change it.
  struct Segment {
    std::uint64_t slot_bytes = 0;  // 0: in no class
    std::uint32_t slots = 0;
    std::uint32_t in_use = 0;
    std::uint32_t retired = 0;
    std::uint32_t bad = 0;
    std::uint32_t first_free_hint = 0;  // no slot below it is free
    std::vector<bool> taken;            // in use, retired or bad
    std::uint32_t gone() const noexcept { return in_use + retired + bad; }
  };
  using SegmentIds = std::set<std::uint32_t>;

  std::optional<std::uint32_t> segment_with_room(std::uint64_t slot_bytes);
  bool is_bad(DiskLocation at, std::uint64_t slot_bytes) const;
  bool is_any_good(std::uint32_t id, std::uint64_t slot_bytes) const;
  void assign(std::uint32_t id, std::uint64_t slot_bytes);
  void take(std::uint32_t id, std::uint32_t slot);
  void update_lists(std::uint32_t id);

  std::uint64_t capacity_bytes_;
  std::uint64_t segment_bytes_;
  std::vector<Segment> segments_;  // every segment that the capacity has room for
  std::map<std::uint32_t, std::vector<BadPlace>> bad_places_;  // by segment
  std::map<std::uint64_t, SegmentIds> with_room_;
  SegmentIds unassigned_;
  SegmentIds empty_;
  std::uint64_t bytes_in_use_ = 0;
  std::uint64_t segments_assigned_ = 0;
};

}  // namespace kvtier::storage
