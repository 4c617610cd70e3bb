// What the prefill attention kernels share: parameters, the order of the work, and where keys and
// values come from.
//
// A thread block computes 128 query rows of one head. Its rows begin at a block of 16 tokens, so
// that each 16 rows of a tensor-core tile are one block: they see earlier blocks through tiles of
// stored tokens at fixed places of the context, and their own block last, exactly, as a 16 x 16
// triangle. What a row adds, and in which order, depends on its position alone. All arithmetic on
// scores is spelt out (__fmul_rn and the like): which products fuse must not depend on which copy
// of a loop a row goes through.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/kernels.h"

namespace kvtier::kernels::cuda {

inline constexpr int kPrefillRows = 128;  // of a thread block

struct PrefillParams {
  const Bf16* q;
  Bf16* out;
  const Bf16* stored_k;
  const Bf16* stored_v;
  std::uint64_t tokens_stride;
  const ExactPage* pages;
  const std::uint32_t* row_page;
  std::uint32_t layer;
  std::uint32_t heads, group, kv_heads;
  std::uint32_t start, rows;
  std::uint32_t tiles;          // of rows
  std::uint32_t section_heads;  // heads worked on together, so that their K and V stay in the cache
  float scale_log2;
  Sight sight;
  StoredSpan span;
};

namespace device {

// What a thread block has to do. Tokens are positions in the sequence.
struct PrefillWork {
  std::uint32_t head;
  std::uint32_t kv_head;
  int first;       // position of the first row, a multiple of 16; may be before the call's start
  int last;        // of the last row of the call that is in this tile
  int stored_end;  // tokens before the block of `last`

  // The longest rows first, lest one thread block be left alone with them.
  __device__ PrefillWork(const PrefillParams& params, std::uint32_t index) {
    const std::uint32_t section = index / (params.tiles * params.section_heads);
    const std::uint32_t first_head = section * params.section_heads;
    const std::uint32_t heads = min(params.section_heads, params.heads - first_head);
    const std::uint32_t rest = index - section * params.tiles * params.section_heads;
    const std::uint32_t tile = params.tiles - 1 - rest / heads;
    constexpr int kBlock = static_cast<int>(kTileTokens);
    head = first_head + rest % heads;
    kv_head = head / params.group;
    first =
        static_cast<int>(params.start) / kBlock * kBlock + static_cast<int>(tile) * kPrefillRows;
    last = min(first + kPrefillRows, static_cast<int>(params.start + params.rows)) - 1;
    stored_end = last / kBlock * kBlock;
  }
  __device__ bool has_row(const PrefillParams& params, int position) const {
    return position >= static_cast<int>(params.start) && position <= last;
  }
};

// The tiles of stored tokens that the rows of a thread block see: those with sinks, which sink_q
// meets, then those of the window, at fixed places of the context.
template <int kTokens, bool kWindowed>
struct StoredTiles {
  int sinks = 0;  // tiles
  int count;
  int first = 0;       // token of the first tile of the window
  int to_window = 0;   // from a token of the window to its place in stored_k
  int sinks_seen = 0;  // tokens
  int sight_window = 0, sight_sinks = 0;

  __device__ StoredTiles(const PrefillParams& params, const PrefillWork& work)
      : count((work.stored_end + kTokens - 1) / kTokens) {
    if constexpr (kWindowed) {
      constexpr int kBlock = static_cast<int>(kTileTokens);
      sight_window = static_cast<int>(params.sight.window);
      sight_sinks = static_cast<int>(params.sight.sinks);
      first = lowest(max(work.first, static_cast<int>(params.start))) & -kTokens;
      to_window =
          (static_cast<int>(params.span.sink_blocks) - static_cast<int>(params.span.first_block)) *
          kBlock;
      sinks_seen = min(sight_sinks, work.stored_end);
      sinks = (sinks_seen + kTokens - 1) / kTokens;
      count = sinks + max(work.stored_end - first + kTokens - 1, 0) / kTokens;
    }
  }
  // The first token of the window of a row, sinks not counted.
  __device__ int lowest(int position) const {
    return max(position + 1 - sight_window, sight_sinks);
  }
  __device__ bool is_sink(int tile) const { return kWindowed && tile < sinks; }
  __device__ int token(int tile) const {
    return is_sink(tile) ? tile * kTokens : first + (tile - sinks) * kTokens;
  }
  __device__ int place(int tile) const { return token(tile) + (is_sink(tile) ? 0 : to_window); }
};

// Of a tile, the tokens that a fragment's rows see, 16 rows that are one block.
struct SeenOfTile {
  int low[2];  // of the lane's two rows
  int high;    // of all
  bool any, all;

  template <int kTokens>
  __device__ SeenOfTile(const StoredTiles<kTokens, true>& tiles, int tile, int block, int lane) {
    constexpr int kLast = static_cast<int>(kTileTokens) - 1;
    const int token = tiles.token(tile);
    const bool sink = tiles.is_sink(tile);
    const auto low_of = [&](int row) { return sink ? 0 : tiles.lowest(block + row) - token; };
    low[0] = low_of(lane / 4);
    low[1] = low_of(lane / 4 + 8);
    high = (sink ? min(tiles.sinks_seen, block) : block) - token;
    any = high > 0 && low_of(0) < min(high, kTokens);
    all = high >= kTokens && low_of(kLast) <= 0;
  }
};

// The exact K of one head at `position`, which is at most work.last: [dim].
template <int kHeadDim>
__device__ inline const Bf16* exact_key(const PrefillParams& params, const PrefillWork& work,
                                        int position) {
  const int start = static_cast<int>(params.start);
  const int block = position & ~(static_cast<int>(kTileTokens) - 1);
  const ExactPage page = params.pages[params.row_page[max(block, start) - start]];
  return page.values + params.layer * page.layer_stride +
         (std::size_t{work.kv_head} * kTileTokens + (position - block)) * kHeadDim;
}
// From there to the exact V of the same token.
template <int kHeadDim>
__device__ inline std::size_t exact_value_distance(const PrefillParams& params) {
  return std::size_t{params.kv_heads} * kTileTokens * kHeadDim;
}

}  // namespace device

// Tensor cores of sm_80 and later, any head size of 64, 96, 128, 256.
void prefill_attention_mma(const PrefillParams& params, std::uint32_t head_dim, StreamView stream);
// Those of sm_90a, head sizes 64 and 128. False, and nothing is launched, on other devices and for
// other sizes. Only where the build is for sm_90a (KVTIER_CUDA_SM90A).
bool prefill_attention_wgmma(const PrefillParams& params, std::uint32_t head_dim,
                             StreamView stream);

}  // namespace kvtier::kernels::cuda
