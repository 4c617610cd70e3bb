#include "storage/store/own_memory.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace kvtier::storage {

bool OwnMemory::has_room(std::uint64_t bytes) const noexcept {
  return in_use_ == 0 || (in_use_ < kPartsMax && bytes <= part_bytes_);
}

Result<std::uint32_t> OwnMemory::take(BlockDevice& device, BufferId buffer, std::uint64_t bytes) {
  KVTIER_CHECK(has_room(bytes));
  if (bytes > part_bytes_) {
    if (const auto grown = grow(device, buffer, bytes); !grown) return grown.error();
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

Result<void> OwnMemory::grow(BlockDevice& device, BufferId buffer, std::uint64_t bytes) {
  auto memory = make_memfd("kvtier-own", kPartsMax * bytes);
  if (!memory) return memory.error();
  auto mapping = Mapping::map(memory->get(), kPartsMax * bytes, Mapping::Access::read_write);
  if (!mapping) return mapping.error();
  if (buffer_) device.remove_buffer(*buffer_);
  buffer_.reset();
  part_bytes_ = 0;
  if (const auto added = device.add_buffer(buffer, mapping->bytes()); !added) return added.error();
  device.pin_buffer(buffer);
  buffer_ = buffer;
  memory_ = std::move(*memory);
  mapping_ = std::move(*mapping);
  part_bytes_ = bytes;
  return {};
}

}  // namespace kvtier::storage
