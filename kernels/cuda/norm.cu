// Residual sum and RMS norm: a thread block to a row, which stays in registers between the sum of
// squares and the result. Threads and the order of the sum depend on `dim` alone.
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace kvtier::kernels::cuda {
namespace {

constexpr std::uint32_t kVector = 8;
constexpr std::uint32_t kThreadsMax = 1024;

struct NormParams {
  const float* residual;
  float* kept;  // where the sum goes, null for nowhere
  const Bf16* delta;
  const std::uint32_t* index;
  const float* weight;
  Bf16* out;
  std::uint32_t dim;
  float epsilon;
};

__device__ __forceinline__ void load_floats(const float* at, float* x) {
  const auto* quads = reinterpret_cast<const float4*>(at);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 quad = quads[i];
    x[4 * i] = quad.x;
    x[4 * i + 1] = quad.y;
    x[4 * i + 2] = quad.z;
    x[4 * i + 3] = quad.w;
  }
}

// Every thread gets the sum.
__device__ __forceinline__ float sum_of_block(float x) {
  __shared__ float of_warps[kThreadsMax / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xFFFFFFFF, x, distance);
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? of_warps[threadIdx.x % 32] : 0;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xFFFFFFFF, x, distance);
  }
  return x;
}

template <int kVectors>
__global__ void __launch_bounds__(kThreadsMax) norm_kernel(const __grid_constant__ NormParams p) {
  device::release_dependent_kernel();
  device::wait_for_previous_kernel();
  const std::uint64_t row = p.index != nullptr ? p.index[blockIdx.x] : blockIdx.x;
  float x[kVectors][kVector];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::uint32_t at = (i * blockDim.x + threadIdx.x) * kVector;
    if (at >= p.dim) break;
    load_floats(p.residual + row * p.dim + at, x[i]);
    if (p.delta != nullptr) {
      const auto* from = reinterpret_cast<const std::byte*>(p.delta + row * p.dim + at);
      const Decoded<DType::bf16, kVector> delta(load_chunk<16>(from));
#pragma unroll
      for (int j = 0; j < static_cast<int>(kVector); ++j) x[i][j] += delta.x[j];
      if (p.kept != nullptr) {
        auto* to = reinterpret_cast<float4*>(p.kept + row * p.dim + at);
        to[0] = make_float4(x[i][0], x[i][1], x[i][2], x[i][3]);
        to[1] = make_float4(x[i][4], x[i][5], x[i][6], x[i][7]);
      }
    }
#pragma unroll
    for (int j = 0; j < static_cast<int>(kVector); ++j) squares = fmaf(x[i][j], x[i][j], squares);
  }
  const float mean = sum_of_block(squares) / static_cast<float>(p.dim);
  const float inverse = 1.0F / sqrtf(mean + p.epsilon);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::uint32_t at = (i * blockDim.x + threadIdx.x) * kVector;
    if (at >= p.dim) break;
    float weight[kVector];
    load_floats(p.weight + at, weight);
    Chunk<16> result;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float pair[2] = {x[i][2 * j] * inverse * weight[2 * j],
                             x[i][2 * j + 1] * inverse * weight[2 * j + 1]};
      result.words[j] = encode_word<DType::bf16, true>(pair, 1.0F);
    }
    store_chunk<16>(reinterpret_cast<std::byte*>(p.out + std::uint64_t{blockIdx.x} * p.dim + at),
                    result);
  }
}

void launch(const NormParams& params, std::size_t rows, StreamView stream) {
  KVTIER_CHECK(params.dim % kVector == 0 && params.dim / kVector <= 4 * kThreadsMax);
  if (rows == 0) return;
  const std::uint32_t vectors = params.dim / kVector;
  const bool small = vectors <= kThreadsMax;
  const std::uint32_t threads = divided_up(vectors, small ? 32 : 4 * 32) * 32;
  device::launch_dependent(small ? norm_kernel<1> : norm_kernel<4>,
                           {.grid = dim3(static_cast<std::uint32_t>(rows)), .threads = threads},
                           stream, params);
}

}  // namespace

void add_rms_norm(float* residual, const Bf16* delta, const float* weight, Bf16* out,
                  std::size_t rows, std::size_t dim, float epsilon, StreamView stream) {
  launch({.residual = residual,
          .kept = residual,
          .delta = delta,
          .index = nullptr,
          .weight = weight,
          .out = out,
          .dim = static_cast<std::uint32_t>(dim),
          .epsilon = epsilon},
         rows, stream);
}

void gather_rms_norm(const float* residual, const Bf16* delta, const std::uint32_t* index,
                     const float* weight, Bf16* out, std::size_t count, std::size_t dim,
                     float epsilon, StreamView stream) {
  launch({.residual = residual,
          .kept = nullptr,
          .delta = delta,
          .index = index,
          .weight = weight,
          .out = out,
          .dim = static_cast<std::uint32_t>(dim),
          .epsilon = epsilon},
         count, stream);
}

}  // namespace kvtier::kernels::cuda
