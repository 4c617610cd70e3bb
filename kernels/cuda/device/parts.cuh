// A row and head's output out of the parts that decode and tail attention leave of it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/kernels.h"

namespace kvtier::kernels::cuda::device {

inline constexpr int kCombineThreads = 256;

// Parts 0 .. count - 1 lie `stride` apart: the largest score and the sum of weights of each, and
// its sums, [head_dim], relative to that score.
struct Parts {
  const float2* sizes;
  const float* sums;
  std::size_t first, stride;
  int count;
};

// A sum of parts, relative to the largest score among them.
struct PartSum {
  float most = -INFINITY;
  float total = 0;
  float4 sum = {0, 0, 0, 0};

  __device__ void add(float decay, float other_total, const float4& x) {
    total = __fmaf_rn(other_total, decay, total);
    sum = {__fmaf_rn(x.x, decay, sum.x), __fmaf_rn(x.y, decay, sum.y), __fmaf_rn(x.z, decay, sum.z),
           __fmaf_rn(x.w, decay, sum.w)};
  }
  // To the same sum relative to `larger`.
  __device__ void rescale(float larger) {
    const float decay = exp2_fast(most - larger);
    total = __fmul_rn(total, decay);
    sum = {__fmul_rn(sum.x, decay), __fmul_rn(sum.y, decay), __fmul_rn(sum.z, decay),
           __fmul_rn(sum.w, decay)};
    most = larger;
  }
};

// The parts team, team + kTeams, ...; several are loaded at a time.
template <int kHeadDim, int kTeams>
__device__ inline PartSum sum_parts(const Parts& parts, int team, int column) {
  constexpr int kAtOnce = 8;
  PartSum result;
  for (int part = team; part < parts.count; part += kTeams * kAtOnce) {
    float2 sizes[kAtOnce];
    float4 sums[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const std::size_t at = parts.first + std::size_t(part + i * kTeams) * parts.stride;
      const bool is_part = part + i * kTeams < parts.count;
      sizes[i] = is_part ? parts.sizes[at] : float2{-INFINITY, 0};
      sums[i] = is_part ? *reinterpret_cast<const float4*>(parts.sums + at * kHeadDim + column * 4)
                        : float4{0, 0, 0, 0};
    }
    float most = result.most;
#pragma unroll
    for (const float2& size : sizes) most = fmaxf(most, size.x);
    result.rescale(most);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      result.add(exp2_fast(sizes[i].x - most), sizes[i].y, sums[i]);
    }
  }
  return result;
}

// Called by a whole thread block of kCombineThreads; teams of kHeadDim / 4 of them take the parts
// in turn. `out`: [head_dim].
template <int kHeadDim>
__device__ inline void combine_parts(const Parts& parts, Bf16* out) {
  constexpr int kColumns = kHeadDim / 4;
  constexpr int kTeams = kCombineThreads / kColumns;
  __shared__ float2 sizes[kTeams];
  __shared__ float4 sums[kTeams][kColumns];
  const int thread = static_cast<int>(threadIdx.x);
  const int team = thread / kColumns;
  const int column = thread % kColumns;
  if (team < kTeams) {
    const PartSum part = sum_parts<kHeadDim, kTeams>(parts, team, column);
    sums[team][column] = part.sum;
    if (column == 0) sizes[team] = {part.most, part.total};
  }
  __syncthreads();
  if (thread >= kColumns) return;
  PartSum all;
#pragma unroll
  for (const float2& size : sizes) all.most = fmaxf(all.most, size.x);
#pragma unroll
  for (int other = 0; other < kTeams; ++other) {
    all.add(exp2_fast(sizes[other].x - all.most), sizes[other].y, sums[other][thread]);
  }
  const float inverse = __frcp_rn(all.total);
  reinterpret_cast<uint2*>(out)[thread] = {pack_bf16(all.sum.x * inverse, all.sum.y * inverse),
                                           pack_bf16(all.sum.z * inverse, all.sum.w * inverse)};
}

}  // namespace kvtier::kernels::cuda::device
