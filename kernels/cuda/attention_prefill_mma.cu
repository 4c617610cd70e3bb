// Prefill attention by mma.sync: K and V tiles come by asynchronous copies into two stages of
// shared memory, fragments by ldmatrix; a warp keeps the scores and sums of its rows in registers.

#include "core/base/check.h"
#include "kernels/cuda/attention_prefill.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/error.h"

namespace kvtier::kernels::cuda {
namespace {

using device::PrefillWork;
using device::SeenOfTile;
using device::StoredTiles;

template <int kDim>
struct MmaShape {
  static constexpr int kHeadDim = kDim;
  // 16-row fragments of a warp: two share each K and V fragment that is read from shared memory.
  static constexpr int kFragments = kDim == 256 ? 1 : 2;
  static constexpr int kWarps = kPrefillRows / 16 / kFragments;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kThreadBlocks = kDim == 256 ? 1 : 2;
  static constexpr int kTokens = kDim == 256 ? 32 : 64;  // of a tile
  // Rows are 16 bytes longer than they need be: eight of them then lie in different banks.
  static constexpr int kStride = kDim + 8;
  static constexpr int kTileElements = kTokens * kStride;
  static constexpr int kQueryElements = kPrefillRows * kStride;
  static constexpr int kSharedBytes =
      (kQueryElements + 4 * kTileElements) * static_cast<int>(sizeof(Bf16));
};

// The running softmax of one warp's rows.
template <typename Shape>
struct WarpRows {
  float sums[Shape::kFragments][Shape::kHeadDim / 8][4] = {};
  float largest[Shape::kFragments][2];  // unscaled
  float total[Shape::kFragments][2] = {};

  __device__ WarpRows() {
    for (auto& rows : largest) rows[0] = rows[1] = -INFINITY;
  }
};

// Of `from`, [rows][heads][head_dim].
template <typename Shape>
__device__ void fetch_queries(const PrefillParams& params, const PrefillWork& work,
                              const Bf16* from, Bf16* shared) {
  constexpr int kPieces = Shape::kHeadDim / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kPrefillRows * kPieces; i += Shape::kThreads) {
    const int row = i / kPieces;
    const int dim = i % kPieces * 8;
    const int position = work.first + row;
    const bool wanted = work.has_row(params, position);
    const std::size_t index = wanted ? position - static_cast<int>(params.start) : 0;
    device::copy_async_or_zero(device::shared_address(shared + row * Shape::kStride + dim),
                               from + (index * params.heads + work.head) * Shape::kHeadDim + dim,
                               wanted);
  }
}

// Stored tokens from `place` on; zeros from `end` on, where anything may lie.
template <typename Shape>
__device__ void fetch_stored(const PrefillParams& params, const PrefillWork& work, int place,
                             int end, Bf16* k, Bf16* v) {
  constexpr int kPieces = Shape::kHeadDim / 8;
  const std::size_t head = work.kv_head * params.tokens_stride * Shape::kHeadDim;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kTokens * kPieces; i += Shape::kThreads) {
    const int row = i / kPieces;
    const int dim = i % kPieces * 8;
    const bool wanted = place + row < end;
    const std::size_t from =
        wanted ? head + std::size_t(place + row) * Shape::kHeadDim + dim : head;
    const int to = row * Shape::kStride + dim;
    device::copy_async_or_zero(device::shared_address(k + to), params.stored_k + from, wanted);
    device::copy_async_or_zero(device::shared_address(v + to), params.stored_v + from, wanted);
  }
}

// Exact tokens from `first_token` on; zeros beyond the last row.
template <typename Shape>
__device__ void fetch_exact(const PrefillParams& params, const PrefillWork& work, int first_token,
                            Bf16* k, Bf16* v) {
  constexpr int kPieces = Shape::kHeadDim / 8;
  const std::size_t to_value = device::exact_value_distance<Shape::kHeadDim>(params);
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kTokens * kPieces; i += Shape::kThreads) {
    const int row = i / kPieces;
    const int dim = i % kPieces * 8;
    const bool wanted = first_token + row <= work.last;
    const int position = wanted ? first_token + row : work.last;
    const Bf16* from = device::exact_key<Shape::kHeadDim>(params, work, position) + dim;
    const int to = row * Shape::kStride + dim;
    device::copy_async_or_zero(device::shared_address(k + to), from, wanted);
    device::copy_async_or_zero(device::shared_address(v + to), from + to_value, wanted);
  }
}

// scores = Q K^T of kPairs * 16 tokens from row `k_row` of the shared tile on.
template <typename Shape, int kFragments, int kPairs>
__device__ void score(const Bf16* q, const Bf16* k, int lane,
                      float (&scores)[kFragments][kPairs * 2][4]) {
  const std::uint32_t q_at = device::shared_address(q + lane % 16 * Shape::kStride + lane / 16 * 8);
  const std::uint32_t k_at =
      device::shared_address(k + (lane / 16 * 8 + lane % 8) * Shape::kStride + lane / 8 % 2 * 8);
#pragma unroll
  for (int step = 0; step < Shape::kHeadDim / 16; ++step) {
    std::uint32_t a[kFragments][4];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      device::load_matrices(a[f], q_at + (f * 16 * Shape::kStride + step * 16) * 2);
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      std::uint32_t b[4];
      device::load_matrices(b, k_at + (pair * 16 * Shape::kStride + step * 16) * 2);
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        device::multiply_add(scores[f][pair * 2], a[f][0], a[f][1], a[f][2], a[f][3], b[0], b[1]);
        device::multiply_add(scores[f][pair * 2 + 1], a[f][0], a[f][1], a[f][2], a[f][3], b[2],
                             b[3]);
      }
    }
  }
}

template <typename Shape, int kFragments, int kPairs>
__device__ void add_values(const Bf16* v, int lane,
                           const std::uint32_t (&weights)[kFragments][kPairs][4],
                           float (*sums)[Shape::kHeadDim / 8][4]) {
  const std::uint32_t v_at =
      device::shared_address(v + (lane / 8 % 2 * 8 + lane % 8) * Shape::kStride + lane / 16 * 8);
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
    for (int dims = 0; dims < Shape::kHeadDim / 16; ++dims) {
      std::uint32_t b[4];
      device::load_matrices_transposed(b, v_at + (pair * 16 * Shape::kStride + dims * 16) * 2);
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        const auto& a = weights[f][pair];
        device::multiply_add(sums[f][dims * 2], a[0], a[1], a[2], a[3], b[0], b[1]);
        device::multiply_add(sums[f][dims * 2 + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }
}

// A tile of stored tokens. `hide(scores, f)` makes minus infinity of those that rows of fragment f
// do not see, where they do not see all.
template <bool kMasked, typename Shape, typename Hide>
__device__ void attend_to_stored(WarpRows<Shape>& rows, const Bf16* q, const Bf16* k, const Bf16* v,
                                 const Hide& hide, float scale, int lane) {
  constexpr int kPairs = Shape::kTokens / 16;
  float scores[Shape::kFragments][kPairs * 2][4] = {};
  std::uint32_t weights[Shape::kFragments][kPairs][4];
  score<Shape, Shape::kFragments, kPairs>(q, k, lane, scores);
#pragma unroll
  for (int f = 0; f < Shape::kFragments; ++f) {
    if constexpr (kMasked) hide(scores[f], f);
    float decay[2];
    device::take_scores<kMasked>(scores[f], scale, rows.largest[f], rows.total[f], decay);
    device::rescale(rows.sums[f], decay);
    device::pack_weights(scores[f], weights[f]);
  }
  add_values<Shape, Shape::kFragments, kPairs>(v, lane, weights, rows.sums);
}

// Of the tile, what comes before each fragment's block, of which that of fragment 0 is `visible`
// tokens behind the tile's first.
template <typename Shape>
__device__ void attend_to_earlier(WarpRows<Shape>& rows, const Bf16* q, const Bf16* k,
                                  const Bf16* v, int visible, float scale, int lane) {
  const auto hide = [&](auto& scores, int f) { device::hide_tokens(scores, visible + f * 16); };
  if (visible >= Shape::kTokens) {
    attend_to_stored<false>(rows, q, k, v, hide, scale, lane);
  } else if (visible + (Shape::kFragments - 1) * 16 > 0) {
    attend_to_stored<true>(rows, q, k, v, hide, scale, lane);
  }
}

// The same of rows with a window; `block` is where fragment 0 begins.
template <typename Shape>
__device__ void attend_in_window(WarpRows<Shape>& rows, const Bf16* q, const Bf16* k, const Bf16* v,
                                 const StoredTiles<Shape::kTokens, true>& tiles, int tile,
                                 int block, float scale, int lane) {
  bool any = false;
  bool all = true;
#pragma unroll
  for (int f = 0; f < Shape::kFragments; ++f) {
    const SeenOfTile seen(tiles, tile, block + f * 16, lane);
    any |= seen.any;
    all &= seen.all;
  }
  const auto hide = [&](auto& scores, int f) {
    const SeenOfTile seen(tiles, tile, block + f * 16, lane);
    device::hide_outside(scores, seen.low, seen.high, lane);
  };
  if (all) {
    attend_to_stored<false>(rows, q, k, v, hide, scale, lane);
  } else if (any) {
    attend_to_stored<true>(rows, q, k, v, hide, scale, lane);
  }
}

// The exact block of one fragment: k and v are its 16 tokens.
template <typename Shape>
__device__ void attend_to_own(WarpRows<Shape>& rows, int f, const Bf16* q, const Bf16* k,
                              const Bf16* v, std::uint32_t window, float scale, int lane) {
  float scores[1][2][4] = {};
  std::uint32_t weights[1][1][4];
  score<Shape, 1, 1>(q, k, lane, scores);
  device::hide_later_tokens(scores[0], lane);
  device::hide_earlier_tokens(scores[0], window, lane);
  float decay[2];
  device::take_scores<true>(scores[0], scale, rows.largest[f], rows.total[f], decay);
  device::rescale(rows.sums[f], decay);
  device::pack_weights(scores[0], weights[0]);
  add_values<Shape, 1, 1>(v, lane, weights, rows.sums + f);
}

// The warp's rows of the output, by way of its rows of `shared`.
template <typename Shape>
__device__ void write_rows(const WarpRows<Shape>& rows, const PrefillParams& params,
                           const PrefillWork& work, int first_row, Bf16* shared, int lane) {
  constexpr int kPieces = Shape::kHeadDim / 8;
  __syncwarp();
#pragma unroll
  for (int f = 0; f < Shape::kFragments; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float inverse = __frcp_rn(device::sum_of_row(rows.total[f][half]));
      Bf16* to = shared + (f * 16 + half * 8 + lane / 4) * Shape::kStride + lane % 4 * 2;
#pragma unroll
      for (int tile = 0; tile < Shape::kHeadDim / 8; ++tile) {
        const float* sum = rows.sums[f][tile] + half * 2;
        *reinterpret_cast<std::uint32_t*>(to + tile * 8) =
            device::pack_bf16(__fmul_rn(sum[0], inverse), __fmul_rn(sum[1], inverse));
      }
    }
  }
  __syncwarp();
#pragma unroll 4
  for (int i = lane; i < Shape::kFragments * 16 * kPieces; i += 32) {
    const int row = i / kPieces;
    const int dim = i % kPieces * 8;
    const int position = work.first + first_row + row;
    if (!work.has_row(params, position)) continue;
    const std::size_t index = position - static_cast<int>(params.start);
    *reinterpret_cast<uint4*>(params.out + (index * params.heads + work.head) * Shape::kHeadDim +
                              dim) =
        *reinterpret_cast<const uint4*>(shared + row * Shape::kStride + dim);
  }
}

template <typename Shape, bool kWindowed>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kThreadBlocks)
    prefill_mma(const __grid_constant__ PrefillParams params) {
  extern __shared__ __align__(16) std::byte shared_bytes[];
  Bf16* const queries = reinterpret_cast<Bf16*>(shared_bytes);
  Bf16* const stages = queries + Shape::kQueryElements;  // [2][K then V]
  const PrefillWork work(params, blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = static_cast<int>(threadIdx.x) / 32 * Shape::kFragments * 16;
  const StoredTiles<Shape::kTokens, kWindowed> stored(params, work);
  const int tiles = stored.count + (work.last - work.first) / Shape::kTokens + 1;
  Bf16* const q = queries + first_row * Shape::kStride;

  const auto fetch = [&](int tile) {
    Bf16* const k = stages + tile % 2 * 2 * Shape::kTileElements;
    Bf16* const v = k + Shape::kTileElements;
    if (tile < stored.count) {
      const int end = stored.is_sink(tile) ? stored.sinks_seen : work.stored_end + stored.to_window;
      fetch_stored<Shape>(params, work, stored.place(tile), end, k, v);
    } else if (tile < tiles) {
      const int first_token = work.first + (tile - stored.count) * Shape::kTokens;
      fetch_exact<Shape>(params, work, first_token, k, v);
    }
    device::commit_copies();
  };
  fetch_queries<Shape>(params, work, stored.is_sink(0) ? params.sight.sink_q : params.q, queries);
  fetch(0);

  WarpRows<Shape> rows;
  for (int tile = 0; tile < tiles; ++tile) {
    device::wait_copies<0>();
    __syncthreads();
    if (kWindowed && tile == stored.sinks && tile != 0) {
      fetch_queries<Shape>(params, work, params.q, queries);
      device::commit_copies();
      device::wait_copies<0>();
      __syncthreads();
    }
    fetch(tile + 1);
    const Bf16* const k = stages + tile % 2 * 2 * Shape::kTileElements;
    const Bf16* const v = k + Shape::kTileElements;
    if (tile < stored.count) {
      const int block = work.first + first_row;
      if constexpr (kWindowed) {
        attend_in_window(rows, q, k, v, stored, tile, block, params.scale_log2, lane);
      } else {
        attend_to_earlier(rows, q, k, v, block - tile * Shape::kTokens, params.scale_log2, lane);
      }
      continue;
    }
#pragma unroll
    for (int f = 0; f < Shape::kFragments; ++f) {
      const int token = first_row + f * 16 - (tile - stored.count) * Shape::kTokens;
      if (token < 0 || token >= Shape::kTokens) continue;
      attend_to_own(rows, f, q + f * 16 * Shape::kStride, k + token * Shape::kStride,
                    v + token * Shape::kStride, kWindowed ? params.sight.window : 0,
                    params.scale_log2, lane);
    }
  }
  write_rows(rows, params, work, first_row, q, lane);
}

template <int kHeadDim>
void launch_mma(const PrefillParams& params, StreamView stream) {
  using Shape = MmaShape<kHeadDim>;
  const auto kernel =
      params.sight.window == 0 ? prefill_mma<Shape, false> : prefill_mma<Shape, true>;
  device::allow_shared_memory(kernel, Shape::kSharedBytes);
  kernel<<<params.tiles * params.heads, Shape::kThreads, Shape::kSharedBytes, stream.get()>>>(
      params);
  check_launch("prefill_mma");
}

}  // namespace

void prefill_attention_mma(const PrefillParams& params, std::uint32_t head_dim, StreamView stream) {
  switch (head_dim) {
    case 64:
      return launch_mma<64>(params, stream);
    case 96:
      return launch_mma<96>(params, stream);
    case 128:
      return launch_mma<128>(params, stream);
    default:
      return launch_mma<256>(params, stream);
  }
}

}  // namespace kvtier::kernels::cuda
