// Prefill attention for sm_90a: one warp fetches tiles of K and V by the tensor memory accelerator,
// two warp groups of 64 rows each multiply them by wgmma, taking turns so that one's softmax runs
// beside the other's products. Within a group the scores of a tile are computed while the values of
// the tile before are added.

#include "kernels/cuda/attention_prefill.cuh"
#include "kernels/cuda/device/bulk.cuh"
#include "kernels/cuda/device/hopper.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/error.h"

namespace kvtier::kernels::cuda {
namespace {

using device::PrefillWork;
using device::SeenOfTile;

constexpr int kTokens = 128;  // of a tile
template <bool kWindowed>
using StoredTiles = device::StoredTiles<kTokens, kWindowed>;
constexpr int kStages = 2;
constexpr int kGroups = 2;                     // of rows: warp groups that multiply
constexpr int kThreads = (kGroups + 1) * 128;  // the first group fetches
constexpr int kFetchRegisters = 40;            // of a thread; 65,536 are shared out
constexpr int kMultiplyRegisters = 232;
constexpr int kTurnBarrier = 1;  // and the next: named barriers of the groups' turns
constexpr int kGroupBarrier = kTurnBarrier + kGroups;  // and the next: of a group alone

struct PrefillMaps {
  PrefillParams params;
  CUtensorMap q;  // [rows][heads][head_dim], boxes of 128 rows and 64 dims
  CUtensorMap sink_q;
  CUtensorMap k;  // [kv_heads][stored tokens][head_dim], boxes of 128 tokens and 64 dims
  CUtensorMap v;
};

// Tiles are halves of 64 dims, each [128][64] with 128-byte rows, swizzled.
template <int kHeadDim, bool kWindowed>
struct WgmmaShared {
  static constexpr int kHalves = kHeadDim / 64;
  static constexpr int kHalfElements = kTokens * 64;
  static constexpr int kTileElements = kHalves * kHalfElements;
  static constexpr int kTileBytes = kTileElements * static_cast<int>(sizeof(Bf16));

  Bf16 q[kWindowed ? 2 : 1][kTileElements];  // and, as sinks are met, Q once more
  Bf16 k[kStages][kTileElements];
  Bf16 v[kStages][kTileElements];
  std::uint64_t q_full;
  std::uint64_t k_full[kStages], v_full[kStages];
  std::uint64_t k_empty[kStages], v_empty[kStages];
};

// Byte of row `row`, dims 8 * piece and on, in a swizzled tile.
__device__ int swizzled(int row, int piece) {
  return piece / 8 * (kTokens * 128) + row * 128 + ((piece % 8) ^ (row % 8)) * 16;
}

// --- Fetching ------------------------------------------------------------------------------------

template <int kHeadDim>
__device__ void fetch_box(Bf16* to, const CUtensorMap& map, int y, int z, std::uint64_t* full) {
  using Shared = WgmmaShared<kHeadDim, false>;
#pragma unroll
  for (int half = 0; half < Shared::kHalves; ++half) {
    device::copy_box(to + half * Shared::kHalfElements, map, half * 64, y, z, full);
  }
}

// The exact K or V (`distance` elements on) of each block of the rows, [block][16][head_dim].
template <int kHeadDim>
__device__ void fetch_exact(Bf16* to, const PrefillParams& params, const PrefillWork& work,
                            std::size_t distance, std::uint64_t* full) {
  constexpr int kBlock = static_cast<int>(kTileTokens) * kHeadDim;
  const int blocks = (work.last - work.first) / static_cast<int>(kTileTokens) + 1;
  device::arrive_and_expect(full, blocks * kBlock * static_cast<int>(sizeof(Bf16)));
  for (int block = 0; block < blocks; ++block) {
    const Bf16* from = device::exact_key<kHeadDim>(
        params, work, work.first + block * static_cast<int>(kTileTokens));
    device::copy_bulk(to + block * kBlock, from + distance, kBlock * static_cast<int>(sizeof(Bf16)),
                      full);
  }
}

// One thread: Q, then the stored tiles, then the exact blocks as if they were one more tile.
template <int kHeadDim, bool kWindowed>
__device__ void fetch_all(const PrefillMaps& maps, const PrefillWork& work,
                          WgmmaShared<kHeadDim, kWindowed>& shared,
                          const StoredTiles<kWindowed>& stored) {
  constexpr int kTileBytes = WgmmaShared<kHeadDim, kWindowed>::kTileBytes;
  const PrefillParams& params = maps.params;
  const int kv_head = static_cast<int>(work.kv_head);
  const int first_row = work.first - static_cast<int>(params.start);
  const bool with_sinks = kWindowed && stored.sinks != 0;
  device::arrive_and_expect(&shared.q_full, with_sinks ? 2 * kTileBytes : kTileBytes);
  // Rows before the call's first and after its last are outside the map and come as zeros.
  fetch_box<kHeadDim>(shared.q[0], maps.q, static_cast<int>(work.head), first_row, &shared.q_full);
  if (with_sinks) {
    fetch_box<kHeadDim>(shared.q[kWindowed], maps.sink_q, static_cast<int>(work.head), first_row,
                        &shared.q_full);
  }
  for (int tile = 0; tile <= stored.count; ++tile) {
    const int stage = tile % kStages;
    const int free_parity = tile / kStages % 2 ^ 1;
    device::wait_phase(&shared.k_empty[stage], free_parity);
    if (tile < stored.count) {
      device::arrive_and_expect(&shared.k_full[stage], kTileBytes);
      fetch_box<kHeadDim>(shared.k[stage], maps.k, stored.place(tile), kv_head,
                          &shared.k_full[stage]);
    } else {
      fetch_exact<kHeadDim>(shared.k[stage], params, work, 0, &shared.k_full[stage]);
    }
    device::wait_phase(&shared.v_empty[stage], free_parity);
    if (tile < stored.count) {
      device::arrive_and_expect(&shared.v_full[stage], kTileBytes);
      fetch_box<kHeadDim>(shared.v[stage], maps.v, stored.place(tile), kv_head,
                          &shared.v_full[stage]);
    } else {
      fetch_exact<kHeadDim>(shared.v[stage], params, work,
                            device::exact_value_distance<kHeadDim>(params), &shared.v_full[stage]);
    }
  }
}

// --- Multiplying ---------------------------------------------------------------------------------

// The rows of one warp group; a warp has 16 of them, which are one block.
template <int kHeadDim>
struct GroupRows {
  float sums[kHeadDim / 8][4] = {};
  float scores[kTokens / 8][4] = {};
  std::uint32_t weights[kTokens / 16][4];
  float largest[2] = {-INFINITY, -INFINITY};  // unscaled
  float total[2] = {};
};

template <int kHeadDim>
__device__ void begin_scores(GroupRows<kHeadDim>& rows, std::uint32_t q, std::uint32_t k) {
  device::pin(rows.scores);
  device::fence_products();
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    const std::uint32_t at = step / 4 * (kTokens * 128) + step % 4 * 32;
    device::multiply_shared(rows.scores, device::describe(q + at, 0), device::describe(k + at, 0),
                            step != 0);
  }
  device::commit_products();
}

template <int kHeadDim>
__device__ void begin_values(GroupRows<kHeadDim>& rows, std::uint32_t v) {
  device::pin(rows.sums);
  device::fence_products();
#pragma unroll
  for (int step = 0; step < kTokens / 16; ++step) {
    device::multiply_registers<false, true>(
        rows.sums, rows.weights[step], device::describe(v + step * 16 * 128, kTokens * 128), true);
  }
  device::commit_products();
}

// Of the tile's tokens the first `visible` come before the warp's block.
template <int kHeadDim>
__device__ void take_tile(GroupRows<kHeadDim>& rows, int visible, float scale, float (&decay)[2]) {
  if (visible >= kTokens) {
    device::take_scores<false>(rows.scores, scale, rows.largest, rows.total, decay);
  } else {
    device::hide_tokens(rows.scores, visible);
    device::take_scores<true>(rows.scores, scale, rows.largest, rows.total, decay);
  }
}

// The same of rows with a window; `block` is where the warp's begin.
template <int kHeadDim>
__device__ void take_tile(GroupRows<kHeadDim>& rows, const StoredTiles<true>& stored, int tile,
                          int block, float scale, float (&decay)[2], int lane) {
  const SeenOfTile seen(stored, tile, block, lane);
  if (seen.all) {
    device::take_scores<false>(rows.scores, scale, rows.largest, rows.total, decay);
  } else {
    device::hide_outside(rows.scores, seen.low, seen.high, lane);
    device::take_scores<true>(rows.scores, scale, rows.largest, rows.total, decay);
  }
}

__device__ void release(std::uint64_t* empty, int lane) {
  if (lane == 0) device::arrive(empty);
}

// All stored tiles, at least one. `before` is the position of the warp's block.
template <int kHeadDim, bool kWindowed>
__device__ void attend_to_stored(GroupRows<kHeadDim>& rows,
                                 WgmmaShared<kHeadDim, kWindowed>& shared,
                                 const StoredTiles<kWindowed>& stored, int before, int group,
                                 float scale, int lane) {
  const std::uint32_t q = device::shared_address(shared.q) + group * 64 * 128;
  const std::uint32_t k = device::shared_address(shared.k);
  const std::uint32_t v = device::shared_address(shared.v);
  constexpr int kTileBytes = WgmmaShared<kHeadDim, kWindowed>::kTileBytes;
  float decay[2];
  const auto q_of = [&](int tile) { return stored.is_sink(tile) ? q + kTileBytes : q; };
  const auto take = [&](int tile) {
    if constexpr (kWindowed) {
      take_tile(rows, stored, tile, before, scale, decay, lane);
    } else {
      take_tile(rows, before - tile * kTokens, scale, decay);
    }
  };

  if (group == 1) device::arrive_named(kTurnBarrier, kGroups * 128);  // the first group begins
  device::wait_phase(&shared.k_full[0], 0);
  begin_scores(rows, q_of(0), k);
  device::wait_products<0>();
  device::pin(rows.scores);
  release(&shared.k_empty[0], lane);
  take(0);
  device::pack_weights(rows.scores, rows.weights);

  for (int tile = 1; tile < stored.count; ++tile) {
    const int stage = tile % kStages;
    const int parity = tile / kStages % 2;
    const int last_stage = (tile - 1) % kStages;
    const int last_parity = (tile - 1) / kStages % 2;
    device::wait_phase(&shared.k_full[stage], parity);
    device::sync_named(kTurnBarrier + group, kGroups * 128);
    begin_scores(rows, q_of(tile), k + stage * kTileBytes);
    device::wait_phase(&shared.v_full[last_stage], last_parity);
    begin_values(rows, v + last_stage * kTileBytes);
    device::arrive_named(kTurnBarrier + (group ^ 1), kGroups * 128);
    device::wait_products<1>();
    device::pin(rows.scores);
    release(&shared.k_empty[stage], lane);
    take(tile);
    device::wait_products<0>();
    device::pin(rows.sums);
    release(&shared.v_empty[last_stage], lane);
    device::rescale(rows.sums, decay);
    device::pack_weights(rows.scores, rows.weights);
  }

  const int last_stage = (stored.count - 1) % kStages;
  device::wait_phase(&shared.v_full[last_stage], (stored.count - 1) / kStages % 2);
  begin_values(rows, v + last_stage * kTileBytes);
  device::wait_products<0>();
  device::pin(rows.sums);
  release(&shared.v_empty[last_stage], lane);
}

// The warp's own block; k and v are its [16][head_dim], the first `known` tokens of which hold
// something: the rest would make NaN of weights of 0.
template <int kHeadDim>
__device__ void attend_to_own(GroupRows<kHeadDim>& rows, const Bf16* q_tile, int first_row,
                              const Bf16* k, Bf16* v, int known, std::uint32_t window, float scale,
                              int lane) {
  for (int i = lane; i < static_cast<int>(kTileTokens) * kHeadDim / 8; i += 32) {
    if (i / (kHeadDim / 8) >= known) reinterpret_cast<uint4*>(v)[i] = {0, 0, 0, 0};
  }
  __syncwarp();
  const std::uint32_t q_at = device::shared_address(q_tile);
  const std::uint32_t k_at =
      device::shared_address(k + (lane / 16 * 8 + lane % 8) * kHeadDim + lane / 8 % 2 * 8);
  const std::uint32_t v_at =
      device::shared_address(v + (lane / 8 % 2 * 8 + lane % 8) * kHeadDim + lane / 16 * 8);
  float scores[2][4] = {};
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    std::uint32_t a[4];
    std::uint32_t b[4];
    device::load_matrices(a, q_at + swizzled(first_row + lane % 16, step * 2 + lane / 16));
    device::load_matrices(b, k_at + step * 32);
    device::multiply_add(scores[0], a[0], a[1], a[2], a[3], b[0], b[1]);
    device::multiply_add(scores[1], a[0], a[1], a[2], a[3], b[2], b[3]);
  }
  device::hide_later_tokens(scores, lane);
  device::hide_earlier_tokens(scores, window, lane);
  float decay[2];
  std::uint32_t weights[1][4];
  device::take_scores<true>(scores, scale, rows.largest, rows.total, decay);
  device::rescale(rows.sums, decay);
  device::pack_weights(scores, weights);
#pragma unroll
  for (int dims = 0; dims < kHeadDim / 16; ++dims) {
    std::uint32_t b[4];
    const auto& a = weights[0];
    device::load_matrices_transposed(b, v_at + dims * 32);
    device::multiply_add(rows.sums[dims * 2], a[0], a[1], a[2], a[3], b[0], b[1]);
    device::multiply_add(rows.sums[dims * 2 + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
  }
}

// The warp's rows of the output, by way of their place in the tile of Q.
template <int kHeadDim>
__device__ void write_rows(const GroupRows<kHeadDim>& rows, const PrefillParams& params,
                           const PrefillWork& work, Bf16* q_tile, int first_row, int lane) {
  auto* const tile = reinterpret_cast<std::byte*>(q_tile);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float inverse = __frcp_rn(device::sum_of_row(rows.total[half]));
    const int row = first_row + half * 8 + lane / 4;
#pragma unroll
    for (int piece = 0; piece < kHeadDim / 8; ++piece) {
      const float* sum = rows.sums[piece] + half * 2;
      *reinterpret_cast<std::uint32_t*>(tile + swizzled(row, piece) + lane % 4 * 4) =
          device::pack_bf16(__fmul_rn(sum[0], inverse), __fmul_rn(sum[1], inverse));
    }
  }
  __syncwarp();
#pragma unroll 4
  for (int i = lane; i < 16 * (kHeadDim / 8); i += 32) {
    const int row = first_row + i / (kHeadDim / 8);
    const int piece = i % (kHeadDim / 8);
    if (!work.has_row(params, work.first + row)) continue;
    const std::size_t index = work.first + row - static_cast<int>(params.start);
    Bf16* to = params.out + (index * params.heads + work.head) * kHeadDim + piece * 8;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(tile + swizzled(row, piece));
  }
}

template <int kHeadDim, bool kWindowed>
__device__ void multiply_all(const PrefillParams& params, const PrefillWork& work,
                             WgmmaShared<kHeadDim, kWindowed>& shared,
                             const StoredTiles<kWindowed>& stored) {
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + group * 64;
  const int before = work.first + first_row;
  GroupRows<kHeadDim> rows;
  device::wait_phase(&shared.q_full, 0);
  if (stored.count != 0) {
    attend_to_stored(rows, shared, stored, before, group, params.scale_log2, lane);
  }
  const int stage = stored.count % kStages;
  const int parity = stored.count / kStages % 2;
  device::wait_phase(&shared.k_full[stage], parity);
  device::wait_phase(&shared.v_full[stage], parity);
  if (before <= work.last) {
    attend_to_own(rows, shared.q[0], first_row, shared.k[stage] + first_row * kHeadDim,
                  shared.v[stage] + first_row * kHeadDim, work.last - before + 1,
                  kWindowed ? params.sight.window : 0, params.scale_log2, lane);
  }
  // Q is overwritten: all products of the group that read it have ended.
  device::sync_named(kGroupBarrier + group, 128);
  write_rows(rows, params, work, shared.q[0], first_row, lane);
}

template <int kHeadDim, bool kWindowed>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_wgmma(const __grid_constant__ PrefillMaps maps) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<WgmmaShared<kHeadDim, kWindowed>*>(shared_bytes);
  const PrefillWork work(maps.params, blockIdx.x);
  const StoredTiles<kWindowed> stored(maps.params, work);
  if (threadIdx.x == 0) {
    device::init_barrier(&shared.q_full, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      device::init_barrier(&shared.k_full[stage], 1);
      device::init_barrier(&shared.v_full[stage], 1);
      device::init_barrier(&shared.k_empty[stage], kGroups * 4);  // a lane of each warp
      device::init_barrier(&shared.v_empty[stage], kGroups * 4);
    }
    device::publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    device::give_up_registers<kFetchRegisters>();
    if (threadIdx.x == 0) fetch_all(maps, work, shared, stored);
  } else {
    device::take_registers<kMultiplyRegisters>();
    multiply_all(maps.params, work, shared, stored);
  }
}

template <int kHeadDim, bool kWindowed>
void launch_wgmma(const PrefillParams& params, StreamView stream) {
  const std::uint64_t tokens = std::uint64_t{params.span.blocks()} * kTileTokens;
  const std::uint64_t row_bytes = kHeadDim * sizeof(Bf16);
  PrefillMaps maps = {};
  maps.params = params;
  for (CUtensorMap* map : {&maps.q, &maps.sink_q}) {
    const bool sinks = map == &maps.sink_q && params.sight.sinks != 0;
    *map = device::tensor_map({.memory = sinks ? params.sight.sink_q : params.q,
                               .sizes = {kHeadDim, params.heads, params.rows},
                               .strides = {row_bytes, row_bytes * params.heads},
                               .box = {64, 1, kPrefillRows}});
  }
  // Where no block is complete the maps are never used, but must still be maps.
  const bool any = tokens != 0;
  for (CUtensorMap* map : {&maps.k, &maps.v}) {
    const Bf16* memory = map == &maps.k ? params.stored_k : params.stored_v;
    *map = device::tensor_map(
        {.memory = any ? memory : params.q,
         .sizes = {kHeadDim, any ? tokens : 1, params.kv_heads},
         .strides = {row_bytes, any ? row_bytes * params.tokens_stride : row_bytes},
         .box = {64, kTokens, 1}});
  }
  constexpr int kShared = sizeof(WgmmaShared<kHeadDim, kWindowed>);
  device::allow_shared_memory(prefill_wgmma<kHeadDim, kWindowed>, kShared);
  prefill_wgmma<kHeadDim, kWindowed>
      <<<params.tiles * params.heads, kThreads, kShared, stream.get()>>>(maps);
  check_launch("prefill_wgmma");
}

template <int kHeadDim>
void launch_wgmma(const PrefillParams& params, StreamView stream) {
  if (params.sight.window == 0) {
    launch_wgmma<kHeadDim, false>(params, stream);
  } else {
    launch_wgmma<kHeadDim, true>(params, stream);
  }
}

}  // namespace

bool prefill_attention_wgmma(const PrefillParams& params, std::uint32_t head_dim,
                             StreamView stream) {
  if (device::compute_capability() != 90) return false;
  switch (head_dim) {
    case 64:
      launch_wgmma<64>(params, stream);
      return true;
    case 128:
      launch_wgmma<128>(params, stream);
      return true;
    default:
      return false;
  }
}

}  // namespace kvtier::kernels::cuda
