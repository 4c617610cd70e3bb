// A place on disk: a directory's number and a segment of it packed into the container, and a slot.
#pragma once

#include <cstdint>

#include "daemon/cache/catalogue/block_index.h"
#include "daemon/limits.h"
#include "storage/store/record_store.h"

namespace kvtier::daemon {

constexpr Place disk_place(std::uint32_t device, storage::DiskLocation at) noexcept {
  return {device << limits::kDiskSegmentBits | at.segment, at.slot};
}
constexpr std::uint32_t device_of(Place at) noexcept {
  return at.container >> limits::kDiskSegmentBits;
}
constexpr storage::DiskLocation location_of(Place at) noexcept {
  return {at.container & ((1U << limits::kDiskSegmentBits) - 1), at.slot};
}

}  // namespace kvtier::daemon
