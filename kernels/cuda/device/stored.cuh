// Stored elements as BF16 pairs for the tensor cores. FP8 values are exact in BF16; scales are not
// applied here.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace kvtier::kernels::cuda::device {

// An FP8 code in the upper byte of a 16-bit half, shifted right by kShift, is the BF16 of the same
// digits with the exponent bias still FP8's; the product with kFactor (a power of two, in both
// halves) mends it, subnormals too. Infinities and NaN come out finite: the quantiser saturates,
// and a NaN in a record is of a model that is broken anyway.
struct StoredE4m3 {
  static constexpr int kBytes = 1;
  static constexpr int kShift = 4;
  static constexpr std::uint32_t kFactor = 0x7B807B80;  // 2^120
};
struct StoredE5m2 {
  static constexpr int kBytes = 1;
  static constexpr int kShift = 3;
  static constexpr std::uint32_t kFactor = 0x77807780;  // 2^112
};
struct StoredBf16 {
  static constexpr int kBytes = 2;
};

__device__ inline std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;"
      : "=r"(product)
      : "r"(a), "r"(b), "r"(0x80008000U));  // minus zero keeps the sign of a zero product
  return product;
}

// Of four FP8 codes: `even` is numbers 0 and 2, `odd` numbers 1 and 3.
template <typename Stored>
__device__ inline void widen(std::uint32_t codes, std::uint32_t& even, std::uint32_t& odd) {
  constexpr std::uint32_t kSigns = 0x80008000;
  constexpr std::uint32_t kDigits = Stored::kShift == 4 ? 0x07F007F0 : 0x0FE00FE0;
  const std::uint32_t low = (codes << 8 & kSigns) | (codes << (8 - Stored::kShift) & kDigits);
  const std::uint32_t high = (codes & kSigns) | (codes >> Stored::kShift & kDigits);
  even = multiply_bf16x2(low, Stored::kFactor);
  odd = multiply_bf16x2(high, Stored::kFactor);
}

}  // namespace kvtier::kernels::cuda::device
