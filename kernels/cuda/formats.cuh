// Elements of pages and records to and from FP32 on the device, in chunks of whole registers: what
// kernels/cpu/isa/formats.inc does, bit for bit. Only the payload of a NaN may differ, and in FP8
// not even that.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cfloat>
#include <cstddef>
#include <cstdint>

#include "kvtier/dtype.h"

namespace kvtier::kernels::cuda {

constexpr bool is_fp8(DType type) {
  return type == DType::fp8_e4m3 || type == DType::fp8_e5m2;
}
constexpr int size_of(DType type) {
  return static_cast<int>(bytes_of(type));
}
constexpr int per_word(DType type) {
  return 4 / size_of(type);
}
constexpr float largest_finite(DType type) {
  return type == DType::fp8_e4m3 ? 448.0F : 57344.0F;
}

// kBytes of memory in registers; 1 and 2 bytes lie in the low end of a word.
template <int kBytes>
struct Chunk {
  std::uint32_t words[(kBytes + 3) / 4];
};

// `at` is aligned to 16 bytes, or to kBytes where that is less.
template <int kBytes>
__device__ __forceinline__ Chunk<kBytes> load_chunk(const std::byte* at) {
  Chunk<kBytes> chunk;
  if constexpr (kBytes == 1) {
    chunk.words[0] = *reinterpret_cast<const std::uint8_t*>(at);
  } else if constexpr (kBytes == 2) {
    chunk.words[0] = *reinterpret_cast<const std::uint16_t*>(at);
  } else if constexpr (kBytes == 4) {
    chunk.words[0] = *reinterpret_cast<const std::uint32_t*>(at);
  } else if constexpr (kBytes == 8) {
    const uint2 pair = *reinterpret_cast<const uint2*>(at);
    chunk.words[0] = pair.x;
    chunk.words[1] = pair.y;
  } else {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      const uint4 quad = reinterpret_cast<const uint4*>(at)[i];
      chunk.words[4 * i] = quad.x;
      chunk.words[4 * i + 1] = quad.y;
      chunk.words[4 * i + 2] = quad.z;
      chunk.words[4 * i + 3] = quad.w;
    }
  }
  return chunk;
}

template <int kBytes>
__device__ __forceinline__ void store_chunk(std::byte* at, const Chunk<kBytes>& chunk) {
  if constexpr (kBytes == 1) {
    *reinterpret_cast<std::uint8_t*>(at) = static_cast<std::uint8_t>(chunk.words[0]);
  } else if constexpr (kBytes == 2) {
    *reinterpret_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(chunk.words[0]);
  } else if constexpr (kBytes == 4) {
    *reinterpret_cast<std::uint32_t*>(at) = chunk.words[0];
  } else if constexpr (kBytes == 8) {
    *reinterpret_cast<uint2*>(at) = make_uint2(chunk.words[0], chunk.words[1]);
  } else {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      reinterpret_cast<uint4*>(at)[i] = make_uint4(chunk.words[4 * i], chunk.words[4 * i + 1],
                                                   chunk.words[4 * i + 2], chunk.words[4 * i + 3]);
    }
  }
}

// The per_word(kType) elements of a word.
template <DType kType>
__device__ __forceinline__ void decode_word(std::uint32_t word, float* x) {
  if constexpr (kType == DType::f32) {
    x[0] = __uint_as_float(word);
  } else if constexpr (kType == DType::bf16) {
    x[0] = __uint_as_float(word << 16);
    x[1] = __uint_as_float(word & 0xFFFF0000);
  } else if constexpr (kType == DType::f16) {
    const __half2_raw raw{static_cast<std::uint16_t>(word), static_cast<std::uint16_t>(word >> 16)};
    const float2 pair = __half22float2(raw);
    // The conversion loses the sign of a NaN.
    x[0] = __uint_as_float(__float_as_uint(pair.x) | (word & 0x8000) << 16);
    x[1] = __uint_as_float(__float_as_uint(pair.y) | (word & 0x80000000));
  } else {
    constexpr auto kFormat = kType == DType::fp8_e4m3 ? __NV_E4M3 : __NV_E5M2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto codes = static_cast<__nv_fp8x2_storage_t>(word >> (16 * i));
      const float2 pair = __half22float2(__nv_cvt_fp8x2_to_halfraw2(codes, kFormat));
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  }
}

__device__ __forceinline__ std::uint32_t bf16_bits(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return x == x ? (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 : (bits >> 16) | 0x40;
}

// A word of per_word(kType) elements x[i] * factor; kScaled false: x[i], which keeps what a NaN
// holds. Into FP8: saturating, and with x's sign even where it is NaN.
template <DType kType, bool kScaled>
__device__ __forceinline__ std::uint32_t encode_word(const float* x, float factor) {
  if constexpr (kType == DType::f32) {
    return __float_as_uint(kScaled ? x[0] * factor : x[0]);
  } else if constexpr (kType == DType::bf16 && !kScaled) {
    return bf16_bits(x[0]) | bf16_bits(x[1]) << 16;
  } else if constexpr (kType == DType::bf16) {
    const __nv_bfloat162_raw raw = __floats2bfloat162_rn(x[0] * factor, x[1] * factor);
    return raw.x | static_cast<std::uint32_t>(raw.y) << 16;
  } else if constexpr (kType == DType::f16) {
    const __half2_raw raw =
        kScaled ? __floats2half2_rn(x[0] * factor, x[1] * factor) : __floats2half2_rn(x[0], x[1]);
    return raw.x | static_cast<std::uint32_t>(raw.y) << 16;
  } else {
    constexpr auto kFormat = kType == DType::fp8_e4m3 ? __NV_E4M3 : __NV_E5M2;
    std::uint32_t word = 0;
    std::uint32_t signs = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 pair = make_float2(x[2 * i] * factor, x[2 * i + 1] * factor);
      const std::uint32_t codes = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, kFormat);
      word |= codes << (16 * i);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) signs |= (__float_as_uint(x[i]) >> 31) << (8 * i + 7);
    return (word & 0x7F7F7F7F) | signs;
  }
}

// kCount elements; those beyond are 0 where kCount does not fill a word.
template <DType kType, int kCount>
struct Decoded {
  static constexpr int kSize = kCount < 4 ? 4 : kCount;
  float x[kSize];

  __device__ __forceinline__ explicit Decoded(const Chunk<kCount * size_of(kType)>& chunk) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) x[i] = 0;
#pragma unroll
    for (int i = 0; i < (kCount * size_of(kType) + 3) / 4; ++i) {
      decode_word<kType>(chunk.words[i], x + i * per_word(kType));
    }
  }
};

template <DType kFrom, DType kTo, int kCount, bool kScaled>
__device__ __forceinline__ Chunk<kCount * size_of(kTo)> converted(
    const Chunk<kCount * size_of(kFrom)>& from, float factor) {
  const Decoded<kFrom, kCount> decoded(from);
  Chunk<kCount * size_of(kTo)> to;
#pragma unroll
  for (int i = 0; i < (kCount * size_of(kTo) + 3) / 4; ++i) {
    to.words[i] = encode_word<kTo, kScaled>(decoded.x + i * per_word(kTo), factor);
  }
  return to;
}

// Called by a whole warp.
__device__ __forceinline__ float largest_of_warp(float magnitude) {
  // Magnitudes are ordered as their bits are.
  return __uint_as_float(__reduce_max_sync(0xFFFFFFFF, __float_as_uint(magnitude)));
}

// As kernels/cpu/isa/kv_blocks.inc: 1 where amax is 0, never subnormal.
__device__ __forceinline__ float scale_for(float amax, float largest) {
  if (amax == 0.0F) return 1.0F;
  return fmaxf(__fdiv_rn(fminf(amax, FLT_MAX), largest), FLT_MIN);
}

}  // namespace kvtier::kernels::cuda
