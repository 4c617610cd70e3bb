// Buffers of the store's own, which no client can reach: kPartsMax parts of one registered mapping,
// as large as the largest record that was read into them so far.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "core/base/fd.h"
#include "storage/device/block_device.h"
#include "storage/store/record_store.h"

namespace kvtier::storage {

class OwnMemory {
 public:
  static constexpr std::uint32_t kPartsMax = kScrubsMax;

  // Whether a record of so many bytes can be taken in now: a part is free, and large enough or no
  // part is in use.
  bool has_room(std::uint64_t bytes) const noexcept;
  // Requires has_room(). `buffer` names the mapping on the device if it has to be made. Errors: io.
  Result<std::uint32_t> take(BlockDevice& device, BufferId buffer, std::uint64_t bytes);
  void give_back(std::uint32_t part) noexcept;

  std::optional<BufferId> buffer() const noexcept { return buffer_; }
  std::span<std::byte> part(std::uint32_t index) const noexcept {
    return mapping_.bytes().subspan(index * part_bytes_, part_bytes_);
  }
  // The part that begins there.
  std::uint32_t part_at(const std::byte* at) const noexcept {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(at - mapping_.bytes().data()) /
                                      part_bytes_);
  }

 private:
  Result<void> grow(BlockDevice& device, BufferId buffer, std::uint64_t bytes);

  UniqueFd memory_;
  Mapping mapping_;
  std::optional<BufferId> buffer_;
  std::uint64_t part_bytes_ = 0;
  std::uint32_t in_use_ = 0;
  std::array<bool, kPartsMax> used_{};
};

}  // namespace kvtier::storage
