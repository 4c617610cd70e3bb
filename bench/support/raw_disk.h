// The bare loop: O_DIRECT transfers at random places of one file, through an io_uring with
// registered file and buffers. What the disk tier is held against.
#pragma once

#include <liburing.h>

#include <filesystem>

#include "bench/support/turn.h"
#include "core/base/fd.h"

namespace kvtier::bench {

class RawDisk {
 public:
  // Allocates the file and writes all of it once. Throws std::runtime_error.
  RawDisk(const std::filesystem::path& file, std::uint64_t bytes);
  ~RawDisk();
  RawDisk(const RawDisk&) = delete;

  // Bytes per second over at least so many seconds.
  double run(Direction direction, std::uint32_t size, double seconds);

 private:
  void start(Direction direction, std::uint32_t buffer, std::uint32_t size, std::uint64_t offset);
  std::uint32_t wait(std::uint32_t size);  // the buffer that is free again
  void fill();

  UniqueFd file_;
  std::uint64_t bytes_;
  io_uring ring_{};
  std::byte* memory_ = nullptr;
  std::uint64_t random_ = 1;
};

}  // namespace kvtier::bench
