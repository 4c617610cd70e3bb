// The order of a row's tokens: by logit, then by id, as one unsigned number each.
#pragma once

#include <cstdint>

namespace kvtier::kernels::cuda {

// A token in the order: the larger comes first.
using LogitPair = unsigned long long;

// Ordered as the logits are; 0 for NaN. -0 is 0.
__device__ __forceinline__ std::uint32_t key_of(float logit) {
  if (logit != logit) return 0;
  const std::uint32_t bits = __float_as_uint(logit + 0.0F);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000;
}
__device__ __forceinline__ float logit_of(std::uint32_t key) {
  return __uint_as_float((key >> 31) != 0 ? key & 0x7FFFFFFF : ~key);
}

__device__ __forceinline__ LogitPair ordered_pair(std::uint32_t key, std::uint32_t id) {
  return static_cast<LogitPair>(key) << 32 | (0xFFFFFFFF - id);
}
__device__ __forceinline__ std::uint32_t key_in(LogitPair pair) {
  return static_cast<std::uint32_t>(pair >> 32);
}
__device__ __forceinline__ std::uint32_t id_in(LogitPair pair) {
  return 0xFFFFFFFF - static_cast<std::uint32_t>(pair);
}
__device__ __forceinline__ float logit_in(LogitPair pair) {
  return logit_of(key_in(pair));
}

}  // namespace kvtier::kernels::cuda
