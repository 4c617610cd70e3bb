// Stored elements as pairs for the tensor cores: FP8 as FP16, in which both formats are exact; BF16
// as it is. Scales are not applied here.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx.cuh"
#include "kvtier/namespace.h"

namespace kvtier::kernels::cuda::device {

// kInterleaved: widen() gives of four codes numbers 0 and 2, then 1 and 3; else 0 and 1, then 2
// and 3.
struct StoredE4m3 {
  static constexpr int kBytes = 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  static constexpr bool kInterleaved = false;  // one instruction a pair
#else
  static constexpr bool kInterleaved = true;
#endif
};
struct StoredE5m2 {
  static constexpr int kBytes = 1;
  static constexpr bool kInterleaved = true;
};
struct StoredBf16 {
  static constexpr int kBytes = 2;
  static constexpr bool kInterleaved = false;
};

// An E5M2 code is the upper half of the FP16 of the same value.
__device__ inline void widen(StoredE5m2, std::uint32_t codes, std::uint32_t& first,
                             std::uint32_t& second) {
  first = codes << 8 & 0xFF00FF00U;
  second = codes & 0xFF00FF00U;
}

__device__ inline void widen(StoredE4m3, std::uint32_t codes, std::uint32_t& first,
                             std::uint32_t& second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n"
      "}\n"
      : "=r"(first), "=r"(second)
      : "r"(codes));
#else
  // The digits of a code, moved to those of an FP16, have an exponent that is 8 too small. NaN
  // comes out finite: a NaN in a record is of a model that is broken anyway.
  constexpr std::uint32_t kSigns = 0x80008000;
  constexpr std::uint32_t kDigits = 0x3F803F80;
  constexpr std::uint32_t kTwoToThe8 = 0x5C005C00;
  const std::uint32_t low = (codes << 8 & kSigns) | (codes << 7 & kDigits);
  const std::uint32_t high = (codes & kSigns) | (codes >> 1 & kDigits);
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(first) : "r"(low), "r"(kTwoToThe8));
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(second) : "r"(high), "r"(kTwoToThe8));
#endif
}

// f(Stored{}) for the elements of a format that kernels attend to in place; false for another.
template <typename F>
bool with_stored_elements(StorageFormat format, const F& f) {
  switch (format) {
    case StorageFormat::fp8_e4m3:
      f(StoredE4m3{});
      return true;
    case StorageFormat::fp8_e5m2:
      f(StoredE5m2{});
      return true;
    case StorageFormat::bf16:
      f(StoredBf16{});
      return true;
    case StorageFormat::f32:
    case StorageFormat::raw:
    case StorageFormat::int8:
    case StorageFormat::int4:
      break;
  }
  return false;
}

// Numbers 0 and 1, then 2 and 3.
template <typename Stored>
__device__ inline void widen_in_order(Stored stored, std::uint32_t codes, std::uint32_t& first,
                                      std::uint32_t& second) {
  if constexpr (Stored::kInterleaved) {
    std::uint32_t even, odd;
    widen(stored, codes, even, odd);
    first = __byte_perm(even, odd, 0x5410);
    second = __byte_perm(even, odd, 0x7632);
  } else {
    widen(stored, codes, first, second);
  }
}

// d += a * b as multiply_add() has it, of what stored elements are multiplied as.
template <typename Stored>
__device__ inline void multiply_elements(float (&d)[4], const std::uint32_t (&a)[4],
                                         std::uint32_t b0, std::uint32_t b1) {
  if constexpr (Stored::kBytes == 1) {
    multiply_add_fp16(d, a[0], a[1], a[2], a[3], b0, b1);
  } else {
    multiply_add(d, a[0], a[1], a[2], a[3], b0, b1);
  }
}

}  // namespace kvtier::kernels::cuda::device
