// What the disk measurement's two sides share.
#pragma once

#include <cstdint>

namespace kvtier::bench {

// Transfers in flight on either side; the tier's defaults.
inline constexpr std::uint32_t kReadDepth = 32;
inline constexpr std::uint32_t kWriteDepth = 16;

enum class Direction { read, write };

constexpr std::uint32_t depth_of(Direction direction) {
  return direction == Direction::read ? kReadDepth : kWriteDepth;
}

}  // namespace kvtier::bench
