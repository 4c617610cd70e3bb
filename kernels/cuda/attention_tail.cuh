// What the kernels of tail attention share (attention_tail.cu says what it is): parameters, which
// rows a warp has, and a running softmax of 16 query heads, the rows of a tensor-core tile.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/stored.cuh"
#include "kernels/cuda/kernels.h"

namespace kvtier::kernels::cuda {

// A part is short enough to keep all multiprocessors busy with a prompt of a few thousand tokens,
// and long enough for its sums to be little beside what it reads.
inline constexpr int kTailPartBlocks = 32;
static_assert(kTailPartBlocks <= 32, "a lane for each block of a part");
inline constexpr int kTailWarps = 4;  // of a thread block, with rows of their own
inline constexpr int kTailTileRows = 16;

struct TailParams {
  const Bf16* q;
  Bf16* out;
  std::byte* const* table;
  const ExactPage* pages;
  const std::uint32_t* row_page;
  float* part_sums;    // [rows][heads][parts][head_dim], relative to the part's largest
  float2* part_sizes;  // [rows][heads][parts]: largest score, sum of weights
  std::uint64_t k_offset, v_offset;
  std::uint64_t k_scale_offset, v_scale_offset;
  std::uint32_t layer, kv_heads;
  std::uint32_t group;        // query heads of a KV head
  std::uint32_t tile_tokens;  // rows of the sequence in a tile: a power of two, so that none of a
                              // tile is in another block
  std::uint32_t start, rows, parts;
  float scale_log2;
};

// The parts of all rows, into the workspace.
void tail_parts_mma(const TailParams& params, StorageFormat format, std::uint32_t head_dim,
                    StreamView stream);
// The same on sm_90a; false where that kernel is not for this device or head.
bool tail_parts_wgmma(const TailParams& params, StorageFormat format, std::uint32_t head_dim,
                      StreamView stream);

// Thread blocks along a part's rows.
inline std::uint32_t tail_row_groups(const TailParams& params) {
  const std::uint32_t tiles =
      (params.start + params.rows - 1) / params.tile_tokens - params.start / params.tile_tokens + 1;
  return (tiles + kTailWarps - 1) / kTailWarps;
}

namespace tail {

inline constexpr int kBlockTokens = static_cast<int>(kTileTokens);

// The rows of one warp.
struct TailRows {
  std::uint32_t first;  // position of the tile's first token, perhaps before the call's first row
  std::uint32_t last;   // of its last that is a row of the call
  int stored_blocks;    // of the part
  bool exact;           // the rows' own block is in the part

  __device__ TailRows(const TailParams& params, int warp) {
    const std::uint32_t tile = blockIdx.z * kTailWarps + warp + params.start / params.tile_tokens;
    const std::uint32_t end = params.start + params.rows;
    const std::uint32_t first_block = blockIdx.y * kTailPartBlocks;
    first = tile * params.tile_tokens;
    last = min(first + params.tile_tokens, end) - 1;
    const std::uint32_t own = first / kTileTokens;
    const bool there = first < end && own >= first_block;
    const std::uint32_t before = there ? own - first_block : 0;
    exact = there && before < kTailPartBlocks;
    stored_blocks = static_cast<int>(min(before, static_cast<std::uint32_t>(kTailPartBlocks)));
  }
  __device__ bool any() const { return exact || stored_blocks > 0; }
};

// Of tile row `tile_row`: the call's row, or -1.
__device__ inline int row_of(const TailParams& params, const TailRows& rows, int tile_row) {
  const std::uint32_t token = static_cast<std::uint32_t>(tile_row) / params.group;
  const std::uint32_t position = rows.first + token;
  const bool there =
      token < params.tile_tokens && position >= params.start && position <= rows.last;
  return there ? static_cast<int>(position - params.start) : -1;
}

// The blocks of a thread block's part.
struct PartBlocks {
  std::uint32_t first;
  int count;  // that any of its rows sees; < 0: no row of it is in the part

  __device__ explicit PartBlocks(const TailParams& params) : first(blockIdx.y * kTailPartBlocks) {
    const std::uint32_t tiles = params.start / params.tile_tokens + (blockIdx.z + 1) * kTailWarps;
    const std::uint32_t end_row = params.start + params.rows - 1;
    const std::uint32_t own_most = min(end_row, tiles * params.tile_tokens - 1) / kTileTokens;
    count =
        own_most < first
            ? -1
            : static_cast<int>(min(own_most - first, static_cast<std::uint32_t>(kTailPartBlocks)));
  }
  // Tables, and records of blocks that were complete before the call's first row, are older than
  // the kernel before this one, which may be at its end still: their copies need not wait for it. A
  // block that the call's own rows complete has its record from that very kernel.
  __device__ bool older_than_the_call(const TailParams& params) const {
    return first + count <= params.start / kTileTokens;
  }
};

// The query heads of the lane's two rows of the tile.
template <int kHeadDim>
struct TailHeads {
  const Bf16* q[2];
  std::size_t part[2];  // where the sums of each go

  __device__ TailHeads(const TailParams& params, const TailRows& rows, int lane) {
    const std::size_t heads = std::size_t{params.kv_heads} * params.group;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int tile_row = half * 8 + lane / 4;
      const int row = row_of(params, rows, tile_row);
      const std::size_t head = blockIdx.x * params.group + tile_row % params.group;
      const std::size_t at = static_cast<std::size_t>(max(row, 0)) * heads + head;
      q[half] = row < 0 ? nullptr : params.q + at * kHeadDim;
      part[half] = at * params.parts + blockIdx.y;
    }
  }
};

// A warp's query heads as the first operand, of type Element. FP16 has not the range of BF16: each
// head is brought to [2^14, 2^15) by a power of two, which `scale` undoes.
template <typename Element, int kHeadDim>
struct Queries {
  static constexpr int kSteps = kHeadDim / 16;

  std::uint32_t words[kSteps][4];
  float scale[2];  // of the scores, of the lane's rows g and g + 8

  // `rows`: those two heads, [kHeadDim] each; null ones are zero.
  __device__ Queries(const Bf16* const (&rows)[2], float factor, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = 0x1p-100F;
#pragma unroll
      for (int i = 0; i < kSteps * 2; ++i) {
        std::uint32_t& pair = words[i / 2][half + i % 2 * 2];
        pair = 0;
        if (rows[half] == nullptr) continue;
        pair = *reinterpret_cast<const std::uint32_t*>(rows[half] + i * 8 + lane % 4 * 2);
        largest = fmaxf(largest, fmaxf(fabsf(low(pair)), fabsf(high(pair))));
      }
      scale[half] = factor;
      if constexpr (Element::kBytes == 1) to_fp16(half, device::max_of_row(largest));
    }
  }

 private:
  static __device__ float low(std::uint32_t pair) {
    return __uint_as_float(pair << 16);
  }
  static __device__ float high(std::uint32_t pair) {
    return __uint_as_float(pair & 0xFFFF0000U);
  }
  __device__ void to_fp16(int half, float largest) {
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
    const float up = __uint_as_float(static_cast<std::uint32_t>(127 + 14 - exponent) << 23);
#pragma unroll
    for (int i = 0; i < kSteps * 2; ++i) {
      std::uint32_t& pair = words[i / 2][half + i % 2 * 2];
      pair = device::pack_fp16(low(pair) * up, high(pair) * up);
    }
    scale[half] *= 1.0F / up;
  }
};

// A warp's running softmax; element i of a tile of the sums is of row i / 2 of the lane's two.
template <int kHeadDim>
struct Sums {
  float sums[kHeadDim / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY};  // of scores and logarithms of V's scales, in log2
  float total[2] = {};
};

// The scales of one stored block; of an exact one they are 1.
struct BlockScales {
  float k = 1;
  float v_log2 = 0;
  float v_inverse = 1;
};

// Turns scores into weights, the scores being in units of log2 once they are multiplied by the
// lane's `scale`, each block's by its own of K and with the logarithm of that of V as a summand:
// the largest weight is 1 whatever the scales are. Of the blocks the first `seen` count; minus
// infinity is a token that is not seen. Leaves in `decay` what sums so far are to be multiplied by.
template <int kHeadDim, int kBlocks>
__device__ inline void weigh(Sums<kHeadDim>& rows, float (&scores)[kBlocks * 2][4],
                             const float (&scale)[2], const BlockScales (&scales)[kBlocks],
                             int seen, float (&decay)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float factor[kBlocks];
    float largest = rows.largest[half];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const float* first = scores[block * 2] + half * 2;
      const float* second = scores[block * 2 + 1] + half * 2;
      factor[block] = __fmul_rn(scale[half], scales[block].k);  // positive
      const float most = fmaxf(fmaxf(first[0], first[1]), fmaxf(second[0], second[1]));
      if (block < seen)
        largest = fmaxf(largest, __fmaf_rn(most, factor[block], scales[block].v_log2));
    }
    largest = device::max_of_row(largest);
    decay[half] = device::exp2_fast(__fadd_rn(rows.largest[half], -largest));
    rows.largest[half] = largest;
    rows.total[half] = __fmul_rn(rows.total[half], decay[half]);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const float offset = __fadd_rn(scales[block].v_log2, -largest);
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = scores[block * 2 + i / 2][half * 2 + i % 2];
        x = block < seen ? device::exp2_fast(__fmaf_rn(x, factor[block], offset)) : 0.0F;
        sum = __fadd_rn(sum, x);
      }
      rows.total[half] = __fmaf_rn(sum, scales[block].v_inverse, rows.total[half]);
    }
  }
}

// Called by a whole warp.
template <int kHeadDim>
__device__ inline void rescale(Sums<kHeadDim>& rows, const float (&decay)[2]) {
  if (!__any_sync(0xFFFFFFFF, decay[0] != 1.0F || decay[1] != 1.0F)) return;
#pragma unroll
  for (auto& sum : rows.sums) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = __fmul_rn(sum[i], decay[i / 2]);
  }
}

// Weights of a block as the first operand of P V.
template <typename Element>
__device__ inline void pack_block(const float (&first)[4], const float (&second)[4],
                                  std::uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* x = (i < 2 ? first : second) + i % 2 * 2;
    a[i] = Element::kBytes == 1 ? device::pack_fp16(x[0], x[1]) : device::pack_bf16(x[0], x[1]);
  }
}

// The rows' own block, read in place from its exact page. Tokens from `tokens` on are not read:
// what lies there may be anything, and a weight of 0 would still make a NaN of it. A lane's rows
// see the tokens up to `own`.
template <int kHeadDim>
__device__ inline void attend_to_exact(Sums<kHeadDim>& rows,
                                       const Queries<device::StoredBf16, kHeadDim>& queries,
                                       const Bf16* k, const Bf16* v, int tokens,
                                       const int (&own)[2], int lane) {
  const int g = lane / 4;
  const int t = lane % 4;
  const auto pair_of_k = [&](int token, int dim) {
    return token < tokens ? *reinterpret_cast<const std::uint32_t*>(k + token * kHeadDim + dim)
                          : 0U;
  };
  const auto of_v = [&](int token, int dim) -> std::uint32_t {
    return token < tokens ? reinterpret_cast<const std::uint16_t*>(v)[token * kHeadDim + dim] : 0U;
  };
  float scores[2][4] = {};
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int dim = step * 16 + t * 2;
      device::multiply_elements<device::StoredBf16>(
          scores[n], queries.words[step], pair_of_k(n * 8 + g, dim), pair_of_k(n * 8 + g, dim + 8));
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i / 4 * 8 + t * 2 + i % 2 > own[i % 4 / 2]) scores[i / 4][i % 4] = -INFINITY;
  }
  const BlockScales scales[1] = {};
  float decay[2];
  weigh<kHeadDim, 1>(rows, scores, queries.scale, scales, 1, decay);
  rescale(rows, decay);
  std::uint32_t a[4];
  pack_block<device::StoredBf16>(scores[0], scores[1], a);
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) {
    const int dim = n * 8 + g;
    device::multiply_elements<device::StoredBf16>(
        rows.sums[n], a, of_v(t * 2, dim) | of_v(t * 2 + 1, dim) << 16,
        of_v(t * 2 + 8, dim) | of_v(t * 2 + 9, dim) << 16);
  }
}

// The rows' own block: each sees its tokens up to itself.
template <int kHeadDim>
__device__ inline void attend_to_own(Sums<kHeadDim>& sums, const TailHeads<kHeadDim>& heads,
                                     const TailParams& params, const TailRows& rows, int lane) {
  const std::uint32_t any_row = max(rows.first, params.start) - params.start;
  const ExactPage page = params.pages[params.row_page[any_row]];
  const Bf16* k = page.values + params.layer * page.layer_stride +
                  std::size_t{blockIdx.x} * kTileTokens * kHeadDim;
  const Bf16* v = k + std::size_t{params.kv_heads} * kTileTokens * kHeadDim;
  int own[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t of_tile = (half * 8 + lane / 4) / params.group;
    const std::uint32_t token = min(of_tile, params.tile_tokens - 1);
    own[half] = static_cast<int>((rows.first + token) % kTileTokens);
  }
  const Queries<device::StoredBf16, kHeadDim> queries(heads.q, params.scale_log2, lane);
  attend_to_exact(sums, queries, k, v, static_cast<int>(rows.last % kTileTokens) + 1, own, lane);
}

template <int kHeadDim>
__device__ inline void write_part(const Sums<kHeadDim>& sums, const TailHeads<kHeadDim>& heads,
                                  const TailParams& params, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = device::sum_of_row(sums.total[half]);
    if (heads.q[half] == nullptr) continue;
    if (lane % 4 == 0) params.part_sizes[heads.part[half]] = {sums.largest[half], total};
    float* to = params.part_sums + heads.part[half] * kHeadDim + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      const float* sum = sums.sums[n] + half * 2;
      *reinterpret_cast<float2*>(to + n * 8) = {sum[0], sum[1]};
    }
  }
}

// The records of a part's blocks, a lane for each.
template <typename Stored>
struct PartRecords {
  const std::byte* record = nullptr;
  float k_scale = 1;
  float v_scale = 1;

  __device__ PartRecords(const TailParams& params, const PartBlocks& part, int lane) {
    if (lane >= part.count) return;
    record = params.table[part.first + lane];
    if constexpr (Stored::kBytes == 1) {
      const std::size_t head = blockIdx.x * sizeof(float);
      k_scale = *reinterpret_cast<const float*>(record + params.k_scale_offset + head);
      v_scale = *reinterpret_cast<const float*>(record + params.v_scale_offset + head);
    }
  }
  __device__ const std::byte* of(int block) const {
    return reinterpret_cast<const std::byte*>(
        __shfl_sync(0xFFFFFFFF, reinterpret_cast<unsigned long long>(record), block));
  }
};

// Leaves the scales of the part's blocks in shared memory, [kTailPartBlocks] x (K, log2 of V, 1 /
// V). Called by one warp, behind the first copies, which would wait for the scales.
template <typename Stored>
__device__ inline void put_scales(float4* scales, const PartRecords<Stored>& of, int lane) {
  scales[lane] = {of.k_scale, __log2f(of.v_scale), __frcp_rn(of.v_scale), 0};
}
template <typename Stored>
__device__ inline BlockScales scales_of(const float4* scales, int block) {
  if constexpr (Stored::kBytes != 1) return {};
  const float4 of = scales[block];
  return {of.x, of.y, of.z};
}

}  // namespace tail
}  // namespace kvtier::kernels::cuda
