#include "storage/store/thread/own_memory.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "storage/index/record_checks.h"

namespace kvtier::storage {

bool OwnMemory::has_room(std::uint64_t bytes) const noexcept {
  return in_use_ == 0 || (in_use_ < kPartsMax && bytes <= part_bytes_);
}

Result<BlockDevice::Transfer> OwnMemory::read_from(SegmentFiles& files, DiskLocation from,
                                                   std::uint64_t slot_bytes,
                                                   std::uint64_t record_bytes) {
  if (!fits_slot(record_bytes, from, slot_bytes, shared_.options.segment_bytes))
    return does_not_fit(record_bytes, from);
  if (const auto there = files.open_to_read(from, slot_bytes); !there) return there.error();
  const auto taken = take(record_bytes);
  if (!taken) return taken.error();
  BlockDevice::Transfer transfer;
  transfer.file = FileId(from.segment);
  transfer.offset = slot_offset(from.slot, slot_bytes);
  transfer.buffer = number_;
  transfer.memory = part(*taken).data();
  transfer.bytes = static_cast<std::uint32_t>(record_bytes);
  return transfer;
}

Result<std::uint32_t> OwnMemory::take(std::uint64_t bytes) {
  KVTIER_CHECK(has_room(bytes));
  if (bytes > part_bytes_) {
    if (!on_device_ && !numbers_.take(number_))
      return make_error(Errc::no_space, "too many extents are registered");
    const auto grown = grow(bytes);
    if (!on_device_) numbers_.give_back(number_);
    if (!grown) return grown.error();
  }
  const auto free = std::find(used_.begin(), used_.end(), false);
  *free = true;
  ++in_use_;
  return static_cast<std::uint32_t>(free - used_.begin());
}

void OwnMemory::give_back(std::uint32_t part) noexcept {
  KVTIER_CHECK(used_[part]);
  used_[part] = false;
  --in_use_;
}

Result<void> OwnMemory::grow(std::uint64_t bytes) {
  auto memory = make_memfd("kvtier-own", kPartsMax * bytes);
  if (!memory) return memory.error();
  auto mapping = Mapping::map(memory->get(), kPartsMax * bytes, Mapping::Access::read_write);
  if (!mapping) return mapping.error();
  if (on_device_) shared_.device.remove_buffer(number_);
  on_device_ = false;
  part_bytes_ = 0;
  if (const auto added = shared_.device.add_buffer(number_, mapping->bytes()); !added)
    return added.error();
  shared_.device.pin_buffer(number_);
  on_device_ = true;
  memory_ = std::move(*memory);
  mapping_ = std::move(*mapping);
  part_bytes_ = bytes;
  return {};
}

}  // namespace kvtier::storage
