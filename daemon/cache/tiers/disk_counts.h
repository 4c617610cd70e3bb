// What the disk tier counts of all its devices together.
#pragma once

#include <array>
#include <cstdint>

namespace kvtier::daemon {

// Why a block was not written to disk.
enum class WriteDrop : std::uint8_t { queue_full, offline, no_room, readers, quota, parent };
inline constexpr std::array<const char*, 6> kWriteDropNames{"queue_full", "offline", "no_room",
                                                            "readers",    "quota",   "parent"};

// Blocks that were to be written and were not.
struct LeftOut {
  std::uint64_t blocks = 0;
  std::uint64_t in_memory = 0;  // of them: in the host tier, and offered again when they are used
};

struct DiskCounts {
  std::uint64_t failures = 0;  // reads and writes that did not hold
  std::uint64_t dropped_writes = 0;
  std::array<std::uint64_t, kWriteDropNames.size()> drops{};  // the same, by reason
  std::uint64_t moved_writes = 0;  // sent elsewhere because their device went offline
};

}  // namespace kvtier::daemon
