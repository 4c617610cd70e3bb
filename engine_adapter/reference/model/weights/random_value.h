// The numbers random weights are made of; for host and device code, with the same bits in both.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define KVTIER_HOST_DEVICE __host__ __device__
#else
#define KVTIER_HOST_DEVICE
#endif

namespace kvtier::engine {

// Element `index` of the tensor with seed `seed`: uniform in [-spread, spread), 24 bits (the
// finaliser of SplitMix64). Exact but for the last product.
KVTIER_HOST_DEVICE inline float random_value(std::uint64_t seed, std::uint64_t index,
                                             float spread) {
  std::uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ z >> 27) * 0x94D049BB133111EBULL;
  z ^= z >> 31;
  return spread * (static_cast<float>(static_cast<std::uint32_t>(z >> 40)) * 0x1p-23F - 1.0F);
}

}  // namespace kvtier::engine

#undef KVTIER_HOST_DEVICE
