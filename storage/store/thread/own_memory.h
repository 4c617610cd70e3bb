// Buffers of the store's own, which no client can reach: kPartsMax parts of one registered mapping,
// as large as the largest record that was read into them so far.
//
// Owned by the part of the store's thread that reads into it. It holds:
// - A part is one transfer's and what follows it, from its taking until give_back().
// - The mapping grows only while no part is in use, and has one buffer number on the device while
//   there is one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "core/base/fd.h"
#include "storage/store/thread/ring_extents.h"
#include "storage/store/thread/segment_files.h"

namespace kvtier::storage {

class OwnMemory {
 public:
  static constexpr std::uint32_t kPartsMax = kScrubsMax;

  // Whose memory it is. Each has a buffer of the device's last ones, for extents take theirs from
  // the first on.
  enum class Of : std::uint32_t { scrubs = 1, second_looks, place_tests };
  static constexpr std::uint32_t kBuffers = 3;
  OwnMemory(StoreShared& shared, BufferNumbers& numbers, Of of)
      : shared_(shared),
        numbers_(numbers),
        number_(shared.device.limits().buffers - static_cast<std::uint32_t>(of)) {}

  // Whether a record of so many bytes can be taken in now: a part is free, and large enough or no
  // part is in use.
  bool has_room(std::uint64_t bytes) const noexcept;
  // A read of a record into a part that is taken for it. Requires has_room(). Errors: invalid (does
  // not fit), corrupt, unavailable, no_space (too many buffers), io.
  Result<BlockDevice::Transfer> read_from(SegmentFiles& files, DiskLocation from,
                                          std::uint64_t slot_bytes, std::uint64_t record_bytes);
  void give_back(std::uint32_t part) noexcept;

  std::span<std::byte> part(std::uint32_t index) const noexcept {
    return mapping_.bytes().subspan(index * part_bytes_, part_bytes_);
  }
  // The part that begins there.
  std::uint32_t part_at(const std::byte* at) const noexcept {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(at - mapping_.bytes().data()) /
                                      part_bytes_);
  }

 private:
  Result<std::uint32_t> take(std::uint64_t bytes);
  Result<void> grow(std::uint64_t bytes);

  StoreShared& shared_;
  BufferNumbers& numbers_;
  const BufferId number_;
  UniqueFd memory_;
  Mapping mapping_;
  bool on_device_ = false;
  std::uint64_t part_bytes_ = 0;
  std::uint32_t in_use_ = 0;
  std::array<bool, kPartsMax> used_{};
};

}  // namespace kvtier::storage
