#include "storage/store/disk_space.h"

#include <algorithm>
#include <string>

#include "core/base/check.h"
#include "core/record/record.h"
#include "storage/index/segments.h"

namespace kvtier::storage {

DiskSpace::DiskSpace(std::uint64_t capacity_bytes, std::uint64_t segment_bytes)
    : capacity_bytes_(capacity_bytes), segment_bytes_(segment_bytes) {
  KVTIER_CHECK(segment_bytes > 0);
  segments_.resize(capacity_bytes / segment_bytes);
  for (std::uint32_t id = 0; id < segments_.size(); ++id) unassigned_.insert(unassigned_.end(), id);
}

std::optional<DiskLocation> DiskSpace::allocate(std::uint64_t slot_bytes) {
  const auto id = segment_with_room(slot_bytes);
  if (!id) return std::nullopt;
  const Segment& segment = segments_[*id];
  std::uint32_t slot = segment.first_free_hint;
  while (segment.taken[slot]) ++slot;
  segments_[*id].first_free_hint = slot + 1;
  take(*id, slot);
  return DiskLocation{*id, slot};
}

// An emptied segment is converted before a new one is made, so that the disk fills no sooner than
// it must.
std::optional<std::uint32_t> DiskSpace::segment_with_room(std::uint64_t slot_bytes) {
  KVTIER_CHECK(slot_bytes > 0 && slot_bytes % kRecordAlignment == 0);
  if (slots_per_segment(segment_bytes_, slot_bytes) == 0) return std::nullopt;
  if (const auto found = with_room_.find(slot_bytes); found != with_room_.end()) {
    return *found->second.begin();
  }
  for (const SegmentIds* from : {&empty_, &unassigned_}) {
    const auto good =
        std::ranges::find_if(*from, [&](std::uint32_t id) { return is_any_good(id, slot_bytes); });
    if (good == from->end()) continue;
    const std::uint32_t id = *good;
    assign(id, slot_bytes);
    return id;
  }
  return std::nullopt;
}

bool DiskSpace::is_bad(DiskLocation at, std::uint64_t slot_bytes) const {
  const auto of_segment = bad_places_.find(at.segment);
  if (of_segment == bad_places_.end()) return false;
  const BadPlace slot = place_of(at, slot_bytes);
  return std::ranges::any_of(of_segment->second, [&](const BadPlace& bad) {
    return bad.offset < slot.offset + slot.bytes && slot.offset < bad.offset + bad.bytes;
  });
}

bool DiskSpace::is_any_good(std::uint32_t id, std::uint64_t slot_bytes) const {
  const std::uint32_t slots = slots_per_segment(segment_bytes_, slot_bytes);
  if (!bad_places_.contains(id)) return slots > 0;
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    if (!is_bad({id, slot}, slot_bytes)) return true;
  }
  return false;
}

void DiskSpace::assign(std::uint32_t id, std::uint64_t slot_bytes) {
  Segment& segment = segments_[id];
  KVTIER_CHECK(segment.in_use == 0 && segment.retired == 0);
  if (segment.slot_bytes == 0) {
    unassigned_.erase(id);
    ++segments_assigned_;
  } else if (const auto old = with_room_.find(segment.slot_bytes); old != with_room_.end()) {
    old->second.erase(id);
    if (old->second.empty()) with_room_.erase(old);
  }
  segment = Segment{};
  segment.slot_bytes = slot_bytes;
  segment.slots = slots_per_segment(segment_bytes_, slot_bytes);
  segment.taken.resize(segment.slots);
  for (std::uint32_t slot = 0; bad_places_.contains(id) && slot < segment.slots; ++slot) {
    if (!is_bad({id, slot}, slot_bytes)) continue;
    segment.taken[slot] = true;
    ++segment.bad;
  }
  update_lists(id);
}

void DiskSpace::take(std::uint32_t id, std::uint32_t slot) {
  Segment& segment = segments_[id];
  segment.taken[slot] = true;
  ++segment.in_use;
  bytes_in_use_ += segment.slot_bytes;
  // Only the first and the last slot change a list; a restart claims millions.
  if (segment.in_use == 1 || segment.gone() == segment.slots) update_lists(id);
}

void DiskSpace::update_lists(std::uint32_t id) {
  const Segment& segment = segments_[id];
  if (segment.in_use == 0 && segment.retired == 0) {
    empty_.insert(id);
  } else {
    empty_.erase(id);
  }
  if (segment.gone() < segment.slots) {
    with_room_[segment.slot_bytes].insert(id);
  } else if (const auto of_class = with_room_.find(segment.slot_bytes);
             of_class != with_room_.end()) {
    of_class->second.erase(id);
    if (of_class->second.empty()) with_room_.erase(of_class);
  }
}

void DiskSpace::free(DiskLocation at) {
  Segment& segment = segments_.at(at.segment);
  KVTIER_CHECK(at.slot < segment.slots && segment.taken[at.slot] && segment.in_use > 0);
  --segment.in_use;
  if (is_bad(at, segment.slot_bytes)) {
    ++segment.bad;
  } else {
    segment.taken[at.slot] = false;
    segment.first_free_hint = std::min(segment.first_free_hint, at.slot);
  }
  bytes_in_use_ -= segment.slot_bytes;
  update_lists(at.segment);
}

Result<void> DiskSpace::claim(DiskLocation at, std::uint64_t slot_bytes) {
  const auto corrupt = [&](const char* what) {
    return make_error(Errc::corrupt, "slot " + std::to_string(at.slot) + " of segment " +
                                         std::to_string(at.segment) + ": " + what);
  };
  if (at.segment >= segments_.size()) return corrupt("past the capacity");
  if (slot_bytes == 0 || at.slot >= slots_per_segment(segment_bytes_, slot_bytes)) {
    return corrupt("past the end of its segment");
  }
  if (segments_[at.segment].slot_bytes == 0) assign(at.segment, slot_bytes);
  if (segments_[at.segment].slot_bytes != slot_bytes) return corrupt("another slot size");
  if (segments_[at.segment].taken[at.slot]) return corrupt("already taken");
  take(at.segment, at.slot);
  return {};
}

void DiskSpace::retire(DiskLocation at) {
  Segment& segment = segments_.at(at.segment);
  KVTIER_CHECK(at.slot < segment.slots && segment.taken[at.slot] && segment.in_use > 0);
  --segment.in_use;
  ++segment.retired;
  bytes_in_use_ -= segment.slot_bytes;
  update_lists(at.segment);
}

void DiskSpace::mark_bad(const BadPlace& place) {
  if (place.segment >= segments_.size()) return;  // past the capacity, for now
  bad_places_[place.segment].push_back(place);
  Segment& segment = segments_[place.segment];
  for (std::uint32_t slot = 0; slot < segment.slots; ++slot) {
    if (segment.taken[slot] || !is_bad({place.segment, slot}, segment.slot_bytes)) continue;
    segment.taken[slot] = true;
    ++segment.bad;
  }
  if (segment.slot_bytes != 0) update_lists(place.segment);
}

std::uint64_t DiskSpace::bad_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (const auto& [segment, places] : bad_places_) {
    for (const BadPlace& place : places) bytes += place.bytes;
  }
  return bytes;
}

std::uint64_t DiskSpace::slot_bytes_of(std::uint32_t segment) const {
  return segments_.at(segment).slot_bytes;
}

DiskSpace::Use DiskSpace::use_of(std::uint32_t segment) const {
  return {segments_.at(segment).in_use, segments_.at(segment).retired};
}

std::uint64_t DiskSpace::bytes_in_use() const noexcept {
  return bytes_in_use_;
}
std::uint64_t DiskSpace::bytes_taken() const noexcept {
  return segments_assigned_ * segment_bytes_;
}
std::uint64_t DiskSpace::capacity_bytes() const noexcept {
  return capacity_bytes_;
}

}  // namespace kvtier::storage
