// Tail attention by the tensor cores of any card from sm_80 on. A tile of a few blocks lies in
// shared memory as 16-bit numbers, [K, V][token][dim], put there once for all warps; each
// multiplies it by its query heads.
#include "core/base/check.h"
#include "kernels/cuda/attention_tail.cuh"
#include "kernels/cuda/device/launch.h"

namespace kvtier::kernels::cuda {
namespace {

using tail::kBlockTokens;

constexpr int kThreads = kTailWarps * 32;

template <typename Stored, int kHeadDim>
struct Shape {
  // FP8 becomes FP16 in a place of its own; BF16 is multiplied where it landed.
  static constexpr bool kWidened = Stored::kBytes == 1;
  static constexpr int kTileBlocks = kHeadDim <= 128 ? 4 : 2;
  static constexpr int kTokens = kTileBlocks * kBlockTokens;
  // 16 bytes more than a row has, so that eight rows begin in different banks.
  static constexpr int kRowBytes = kHeadDim * 2 + 16;
  static constexpr int kSideBytes = kTokens * kRowBytes;
  static constexpr int kNumbersBytes = 2 * kSideBytes;
  static constexpr int kHeadBytes = kBlockTokens * kHeadDim * Stored::kBytes;  // K or V of a block
  static constexpr int kStageBytes = kWidened ? 2 * kTileBlocks * kHeadBytes : kNumbersBytes;
  static constexpr int kStages = 3;
  static constexpr int kSharedBytes = kStages * kStageBytes + (kWidened ? kNumbersBytes : 0);
};

// Begins to copy block `block` of a tile; k and v are one head's [token][dim].
template <typename Stored, int kHeadDim>
__device__ void fetch_block(std::byte* stage, int block, const std::byte* k, const std::byte* v,
                            int thread) {
  using S = Shape<Stored, kHeadDim>;
  constexpr int kPieces = S::kHeadBytes / 16;
  constexpr int kRowPieces = kHeadDim * Stored::kBytes / 16;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const std::byte* from = side == 0 ? k : v;
#pragma unroll
    for (int piece = thread; piece < kPieces; piece += kThreads) {
      int at = (block * 2 + side) * S::kHeadBytes + piece * 16;
      if constexpr (!S::kWidened) {
        at = side * S::kSideBytes + (block * kBlockTokens + piece / kRowPieces) * S::kRowBytes +
             piece % kRowPieces * 16;
      }
      device::copy_async<16>(device::shared_address(stage + at), from + piece * 16);
    }
  }
}

// The numbers of a tile, of blocks that have landed and of such as have not. Called by the whole
// thread block.
template <typename Stored, int kHeadDim>
__device__ void widen_tile(std::byte* numbers, const std::byte* stage, int thread) {
  using S = Shape<Stored, kHeadDim>;
  constexpr int kRowPieces = kHeadDim / 8;
  constexpr int kSidePieces = kBlockTokens * kRowPieces;  // of K or V of a block
  constexpr int kPieces = 2 * kSidePieces * S::kTileBlocks / kThreads;
  constexpr int kAtOnce = kPieces % 8 == 0 ? 8 : 4;  // loaded before they are stored
  static_assert(2 * kSidePieces * S::kTileBlocks % kThreads == 0 && kPieces % kAtOnce == 0);
#pragma unroll
  for (int first = 0; first < kPieces; first += kAtOnce) {
    uint2 codes[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int piece = (first + i) * kThreads + thread;
      // What has not landed is not multiplied.
      codes[i] = *reinterpret_cast<const uint2*>(stage + piece * 8);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int piece = (first + i) * kThreads + thread;
      const int block = piece / (2 * kSidePieces);
      const int side = piece / kSidePieces % 2;
      const int token = piece % kSidePieces / kRowPieces;
      uint4 wide;
      device::widen_in_order(Stored{}, codes[i].x, wide.x, wide.y);
      device::widen_in_order(Stored{}, codes[i].y, wide.z, wide.w);
      *reinterpret_cast<uint4*>(numbers + side * S::kSideBytes +
                                (block * kBlockTokens + token) * S::kRowBytes +
                                piece % kRowPieces * 16) = wide;
    }
  }
}

// Takes the first `blocks` blocks of a tile, at least one; kWhole: all. `numbers`: where it lies,
// as a shared address.
template <typename Stored, int kHeadDim, bool kWhole>
__device__ void attend_to_tile(
    tail::Sums<kHeadDim>& rows, const tail::Queries<Stored, kHeadDim>& queries,
    std::uint32_t numbers, int blocks,
    const tail::BlockScales (&scales)[Shape<Stored, kHeadDim>::kTileBlocks], int lane) {
  using S = Shape<Stored, kHeadDim>;
  const std::uint32_t k = numbers + (lane / 16 * 8 + lane % 8) * S::kRowBytes + lane / 8 % 2 * 16;
  const std::uint32_t v = numbers + S::kSideBytes + lane % 16 * S::kRowBytes + lane / 16 * 16;
  const auto there = [&](int block) { return kWhole || block < blocks; };
  float scores[S::kTileBlocks * 2][4] = {};
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
#pragma unroll
    for (int block = 0; block < S::kTileBlocks; ++block) {
      if (!there(block)) break;
      std::uint32_t b[4];
      device::load_matrices(b, k + block * kBlockTokens * S::kRowBytes + step * 32);
      device::multiply_elements<Stored>(scores[block * 2], queries.words[step], b[0], b[1]);
      device::multiply_elements<Stored>(scores[block * 2 + 1], queries.words[step], b[2], b[3]);
    }
  }
  float decay[2];
  tail::weigh<kHeadDim, S::kTileBlocks>(rows, scores, queries.scale, scales,
                                        kWhole ? S::kTileBlocks : blocks, decay);
  tail::rescale(rows, decay);
#pragma unroll
  for (int block = 0; block < S::kTileBlocks; ++block) {
    if (!there(block)) break;
    std::uint32_t a[4];
    tail::pack_block<Stored>(scores[block * 2], scores[block * 2 + 1], a);
#pragma unroll
    for (int dims = 0; dims < kHeadDim / 16; ++dims) {
      std::uint32_t b[4];
      device::load_matrices_transposed(b, v + block * kBlockTokens * S::kRowBytes + dims * 32);
      device::multiply_elements<Stored>(rows.sums[dims * 2], a, b[0], b[1]);
      device::multiply_elements<Stored>(rows.sums[dims * 2 + 1], a, b[2], b[3]);
    }
  }
}

template <typename Stored, int kHeadDim>
__global__ void __launch_bounds__(kThreads, 2)
    tail_parts(const __grid_constant__ TailParams params) {
  using S = Shape<Stored, kHeadDim>;
  extern __shared__ __align__(16) std::byte shared[];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  device::release_dependent_kernel();
  const tail::TailRows rows(params, thread / 32);
  const tail::PartBlocks part(params);
  const int blocks = part.count;
  if (blocks < 0) return device::wait_for_previous_kernel();
  if (!part.older_than_the_call(params)) device::wait_for_previous_kernel();

  const tail::PartRecords<Stored> records(params, part, lane);
  const std::size_t head_at = std::size_t{blockIdx.x} * S::kHeadBytes;
  const auto stage_of = [&](int tile) { return shared + tile % S::kStages * S::kStageBytes; };
  const auto fetch = [&](int tile) {
#pragma unroll
    for (int i = 0; i < S::kTileBlocks; ++i) {
      const int block = tile * S::kTileBlocks + i;
      if (block >= blocks) break;
      const std::byte* record = records.of(block);
      fetch_block<Stored, kHeadDim>(stage_of(tile), i, record + params.k_offset + head_at,
                                    record + params.v_offset + head_at, thread);
    }
    device::commit_copies();
  };
#pragma unroll
  for (int tile = 0; tile < S::kStages - 1; ++tile) fetch(tile);
  device::wait_for_previous_kernel();

  const tail::TailHeads<kHeadDim> heads(params, rows, lane);
  const tail::Queries<Stored, kHeadDim> queries(heads.q, params.scale_log2, lane);
  __shared__ float4 part_scales[kTailPartBlocks];
  if (thread < 32) tail::put_scales(part_scales, records, lane);  // seen behind the first barrier
  tail::Sums<kHeadDim> sums;
  for (int tile = 0; tile * S::kTileBlocks < blocks; ++tile) {
    device::wait_copies<S::kStages - 2>();
    __syncthreads();  // the tile has landed for all, and all have done with the one before
    fetch(tile + S::kStages - 1);
    const int first = tile * S::kTileBlocks;
    std::byte* numbers = stage_of(tile);
    if constexpr (S::kWidened) {
      numbers = shared + S::kStages * S::kStageBytes;
      widen_tile<Stored, kHeadDim>(numbers, stage_of(tile), thread);
      __syncthreads();
    }
    if (first >= rows.stored_blocks) continue;
    tail::BlockScales scales[S::kTileBlocks];
#pragma unroll
    for (int i = 0; i < S::kTileBlocks; ++i)
      scales[i] = tail::scales_of<Stored>(part_scales, first + i);
    const int before = rows.stored_blocks - first;
    const std::uint32_t at = device::shared_address(numbers);
    if (before >= S::kTileBlocks) {
      attend_to_tile<Stored, kHeadDim, true>(sums, queries, at, before, scales, lane);
    } else {
      attend_to_tile<Stored, kHeadDim, false>(sums, queries, at, before, scales, lane);
    }
  }
  device::wait_copies<0>();
  if (!rows.any()) return;
  if (rows.exact) tail::attend_to_own(sums, heads, params, rows, lane);
  tail::write_part(sums, heads, params, lane);
}

template <typename Stored, int kHeadDim>
void launch_mma(const TailParams& params, StreamView stream) {
  constexpr int kShared = Shape<Stored, kHeadDim>::kSharedBytes;
  device::allow_shared_memory(tail_parts<Stored, kHeadDim>, kShared);
  device::launch_dependent(tail_parts<Stored, kHeadDim>,
                           {.grid = dim3(params.kv_heads, params.parts, tail_row_groups(params)),
                            .threads = kThreads,
                            .shared_bytes = kShared},
                           stream, params);
}

template <typename Stored>
void launch_mma_of_type(std::uint32_t head_dim, const TailParams& params, StreamView stream) {
  switch (head_dim) {
    case 64:
      return launch_mma<Stored, 64>(params, stream);
    case 96:
      return launch_mma<Stored, 96>(params, stream);
    case 128:
      return launch_mma<Stored, 128>(params, stream);
    default:
      return launch_mma<Stored, 256>(params, stream);
  }
}

}  // namespace

void tail_parts_mma(const TailParams& params, StorageFormat format, std::uint32_t head_dim,
                    StreamView stream) {
  const bool known = device::with_stored_elements(
      format, [&](auto stored) { launch_mma_of_type<decltype(stored)>(head_dim, params, stream); });
  KVTIER_CHECK(known && "tail attention: records of this format are the CPU backend's alone");
}

}  // namespace kvtier::kernels::cuda
