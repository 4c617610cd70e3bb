// The buckets of all histograms: bucket 0 has the value 0, bucket b the values from 2^(b-1) to
// 2^b - 1, and the last everything above. A value costs one instruction to sort in, and histograms
// of different processes add up.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace kvtier {

// Up to 2^27: in microseconds a little over two minutes, in seconds four years.
inline constexpr std::size_t kLog2Buckets = 28;  // and one for what is above

constexpr std::size_t log2_bucket(std::uint64_t value) noexcept {
  return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(value)), kLog2Buckets);
}

}  // namespace kvtier
