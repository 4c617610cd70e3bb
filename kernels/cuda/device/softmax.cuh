// The running softmax of one 16-row tensor-core fragment, in the layout of multiply_add()
// (ptx.cuh): element i of a tile belongs to row i / 2 of the lane's two.
//
// Every operation is spelt out: what fuses must not depend on which copy of a loop a row goes
// through, for a row's bits to depend on the row alone.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/device/ptx.cuh"

namespace kvtier::kernels::cuda::device {

// Turns unscaled scores into weights relative to the largest score so far, and says in `decay` what
// sums relative to the largest before are to be multiplied by. kMasked: scores may be minus
// infinity, even all that a row has seen.
template <bool kMasked, int kTiles>
__device__ inline void take_scores(float (&scores)[kTiles][4], float scale, float (&largest)[2],
                                   float (&total)[2], float (&decay)[2]) {
  float offset[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float most = largest[row];
#pragma unroll
    for (const auto& tile : scores) most = fmaxf(most, fmaxf(tile[row * 2], tile[row * 2 + 1]));
    most = max_of_row(most);
    // A row that has seen nothing: any finite offset makes all its weights 0.
    const float shift = kMasked && most == -INFINITY ? 0.0F : most;
    offset[row] = -__fmul_rn(shift, scale);
    // Exactly 1 where nothing larger came.
    decay[row] = exp2_fast(__fadd_rn(__fmul_rn(largest[row], scale), offset[row]));
    largest[row] = most;
    total[row] = __fmul_rn(total[row], decay[row]);
  }
#pragma unroll
  for (auto& tile : scores) {
#pragma unroll
    for (int i = 0; i < 4; ++i) tile[i] = exp2_fast(__fmaf_rn(tile[i], scale, offset[i / 2]));
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      total[row] = __fadd_rn(total[row], __fadd_rn(tile[row * 2], tile[row * 2 + 1]));
    }
  }
}

template <int kTiles>
__device__ inline void rescale(float (&sums)[kTiles][4], const float (&decay)[2]) {
#pragma unroll
  for (auto& sum : sums) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = __fmul_rn(sum[i], decay[i / 2]);
  }
}

// Weights as the first operand of P V.
template <int kTiles>
__device__ inline void pack_weights(const float (&weights)[kTiles][4],
                                    std::uint32_t (&packed)[kTiles / 2][4]) {
#pragma unroll
  for (int i = 0; i < kTiles * 2; ++i) {
    packed[i / 4][i % 4] = pack_bf16(weights[i / 2][i % 2 * 2], weights[i / 2][i % 2 * 2 + 1]);
  }
}

// Of a tile of tokens only the first `visible` count; it is a multiple of 8.
template <int kTiles>
__device__ inline void hide_tokens(float (&scores)[kTiles][4], int visible) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    if (tile * 8 < visible) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[tile][i] = -INFINITY;
  }
}

// Of a tile of tokens those from low[half] to high - 1 count for a lane's row of that half.
template <int kTiles>
__device__ inline void hide_outside(float (&scores)[kTiles][4], const int (&low)[2], int high,
                                    int lane) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = tile * 8 + lane % 4 * 2 + i % 2;
      if (token < low[i / 2] || token >= high) scores[tile][i] = -INFINITY;
    }
  }
}

// Of a block with itself: a row sees the last `window` tokens, itself included; 0: all.
__device__ inline void hide_earlier_tokens(float (&scores)[2][4], std::uint32_t window, int lane) {
  if (window == 0) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
    const int row = lane / 4 + i / 2 % 2 * 8;
    if (token + static_cast<int>(window) <= row) scores[i / 4][i % 4] = -INFINITY;
  }
}

// The triangle of a block with itself: a row sees the tokens up to its own.
__device__ inline void hide_later_tokens(float (&scores)[2][4], int lane) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
    const int row = lane / 4 + i / 2 % 2 * 8;
    if (token > row) scores[i / 4][i % 4] = -INFINITY;
  }
}

}  // namespace kvtier::kernels::cuda::device
