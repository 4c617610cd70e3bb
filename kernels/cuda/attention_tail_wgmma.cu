// Tail attention for sm_90a: one warp group copies a part's blocks and turns FP8 into FP16, another
// multiplies them by 64 query heads by wgmma, which reads them in shared memory.
#include "kernels/cuda/attention_tail.cuh"
#include "kernels/cuda/device/bulk.cuh"
#include "kernels/cuda/device/hopper.cuh"
#include "kernels/cuda/device/launch.h"

namespace kvtier::kernels::cuda {
namespace {

using tail::kBlockTokens;

constexpr int kGroupThreads = kTailWarps * 32;
constexpr int kThreads = 2 * kGroupThreads;  // the first group fills
constexpr int kFillRegisters = 64;           // of a thread; two thread blocks share 65,536
constexpr int kMultiplyRegisters = 192;
constexpr int kFillBarrier = 1;  // a named barrier of the group that fills
constexpr int kTileBlocks = 4;
constexpr int kTokens = kTileBlocks * kBlockTokens;
constexpr int kAhead = 2;  // tiles whose copies are under way

// Numbers of a tile: K, then V, in halves of 64 dims, each [64 tokens][64 dims] with 128-byte rows,
// swizzled. BF16 is copied there; FP8 goes through stages of its own.
template <typename Stored, int kHeadDim>
struct Shape {
  static constexpr bool kWidened = Stored::kBytes == 1;
  static constexpr int kSideBytes = kTokens * kHeadDim * 2;
  static constexpr int kNumbersBytes = 2 * kSideBytes;
  static constexpr int kNumbers = kWidened ? 2 : kAhead + 1;
  static constexpr int kHeadBytes = kBlockTokens * kHeadDim * Stored::kBytes;  // of a block
  static constexpr int kStageBytes = 2 * kTileBlocks * kHeadBytes;
  static constexpr int kStages = kWidened ? kAhead + 1 : 0;
  static constexpr int kScalesAt = kNumbers * kNumbersBytes + kStages * kStageBytes;
  static constexpr int kBarriersAt =
      kScalesAt + (kWidened ? kTailPartBlocks * static_cast<int>(sizeof(float4)) : 0);
  static constexpr int kSharedBytes =
      kBarriersAt + (2 * kNumbers + kStages) * static_cast<int>(sizeof(std::uint64_t));

  // Byte of token `row`, dims 8 * piece and on, of K or V of a tile.
  static __device__ int swizzled(int row, int piece) {
    return piece / 8 * (kTokens * 128) + row * 128 + ((piece % 8) ^ (row % 8)) * 16;
  }
};

template <typename Stored, int kHeadDim>
struct Shared {
  using S = Shape<Stored, kHeadDim>;

  std::byte* bytes;

  __device__ std::byte* numbers(int tile) const {
    return bytes + tile % S::kNumbers * S::kNumbersBytes;
  }
  __device__ std::byte* stage(int tile) const {
    return bytes + S::kNumbers * S::kNumbersBytes + tile % (kAhead + 1) * S::kStageBytes;
  }
  __device__ std::uint64_t* full(int tile) const {
    return reinterpret_cast<std::uint64_t*>(bytes + S::kBarriersAt) + tile % S::kNumbers;
  }
  __device__ std::uint64_t* empty(int tile) const { return full(tile) + S::kNumbers; }
  __device__ std::uint64_t* landed(int tile) const {
    return reinterpret_cast<std::uint64_t*>(bytes + S::kBarriersAt) + 2 * S::kNumbers +
           tile % (kAhead + 1);
  }
  static __device__ int landed_parity(int tile) { return tile / (kAhead + 1) % 2; }
  __device__ float4* scales() const { return reinterpret_cast<float4*>(bytes + S::kScalesAt); }
  static __device__ int parity(int tile) { return tile / S::kNumbers % 2; }
};

// --- Filling -------------------------------------------------------------------------------------

// Begins to copy a tile of BF16 to where it is multiplied. Blocks behind the part's last come as
// zeros, which a weight of 0 makes nothing of.
template <int kHeadDim>
__device__ void fetch_tile(const TailParams& params,
                           const tail::PartRecords<device::StoredBf16>& records, int blocks,
                           const Shared<device::StoredBf16, kHeadDim>& shared, int tile) {
  using S = Shape<device::StoredBf16, kHeadDim>;
  constexpr int kRowPieces = kHeadDim / 8;
  const int thread = static_cast<int>(threadIdx.x);
  const std::size_t head_at = std::size_t{blockIdx.x} * S::kHeadBytes;
#pragma unroll
  for (int i = 0; i < kTileBlocks; ++i) {
    const int block = tile * kTileBlocks + i;
    const std::byte* record = records.of(min(block, kTailPartBlocks - 1));
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const std::byte* from = record + (side == 0 ? params.k_offset : params.v_offset) + head_at;
#pragma unroll
      for (int piece = thread; piece < S::kHeadBytes / 16; piece += kGroupThreads) {
        const int at = side * S::kSideBytes +
                       S::swizzled(i * kBlockTokens + piece / kRowPieces, piece % kRowPieces);
        device::copy_async_or_zero(device::shared_address(shared.numbers(tile) + at),
                                   from + piece * 16, block < blocks);
      }
    }
  }
}

template <int kHeadDim>
__device__ void fill_all(const TailParams& params, const tail::PartBlocks& part,
                         const tail::PartRecords<device::StoredBf16>& records,
                         const Shared<device::StoredBf16, kHeadDim>& shared) {
  const int tiles = (part.count + kTileBlocks - 1) / kTileBlocks;
  const auto fetch = [&](int tile) {
    if (tile < tiles) {
      device::wait_phase(shared.empty(tile), shared.parity(tile) ^ 1);
      fetch_tile(params, records, part.count, shared, tile);
    }
    device::commit_copies();
  };
#pragma unroll
  for (int tile = 0; tile < kAhead; ++tile) fetch(tile);
  for (int tile = 0; tile < tiles; ++tile) {
    device::wait_copies<kAhead - 1>();
    device::show_to_products();
    device::arrive(shared.full(tile));
    fetch(tile + kAhead);
  }
  device::wait_copies<0>();
}

// Begins to copy the codes of a tile's blocks, of which there are `blocks`. Called by a whole warp.
template <typename Stored, int kHeadDim>
__device__ void fetch_codes(const TailParams& params, const tail::PartRecords<Stored>& records,
                            int blocks, const Shared<Stored, kHeadDim>& shared, int tile,
                            int lane) {
  using S = Shape<Stored, kHeadDim>;
  const int here = min(blocks - tile * kTileBlocks, kTileBlocks);
  const std::byte* record = records.of(min(tile * kTileBlocks + lane / 2, kTailPartBlocks - 1));
  if (lane == 0) device::arrive_and_expect(shared.landed(tile), here * 2 * S::kHeadBytes);
  __syncwarp();
  if (lane >= 2 * here) return;
  device::copy_bulk(shared.stage(tile) + lane * S::kHeadBytes,
                    record + (lane % 2 == 0 ? params.k_offset : params.v_offset) +
                        std::size_t{blockIdx.x} * S::kHeadBytes,
                    S::kHeadBytes, shared.landed(tile));
}

// Numbers of a tile that has `blocks` blocks; of the rest zeros, which a weight of 0 makes nothing
// of.
template <typename Stored, int kHeadDim>
__device__ void widen_tile(const Shared<Stored, kHeadDim>& shared, int tile, int blocks) {
  using S = Shape<Stored, kHeadDim>;
  constexpr int kRowPieces = kHeadDim / 8;
  constexpr int kRows = kGroupThreads / kRowPieces;  // of [block][K, V][token], at a time
  constexpr int kTimes = 2 * kTokens / kRows;
  constexpr int kAtOnce = 4;  // loaded before they are stored
  static_assert(kBlockTokens % kRows == 0 && kRows % 8 == 0 && kTimes % kAtOnce == 0);
  // All places of a thread are a constant apart.
  const int thread = static_cast<int>(threadIdx.x);
  const std::byte* from = shared.stage(tile) + thread * 8;
  std::byte* to = shared.numbers(tile) + S::swizzled(thread / kRowPieces, thread % kRowPieces);
#pragma unroll
  for (int first = 0; first < kTimes; first += kAtOnce) {
    uint2 codes[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      codes[i] = {0, 0};
      if ((first + i) * kRows / (2 * kBlockTokens) < blocks)
        codes[i] = *reinterpret_cast<const uint2*>(from + (first + i) * kGroupThreads * 8);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = (first + i) * kRows;
      const int side = row / kBlockTokens % 2;
      const int token = row / (2 * kBlockTokens) * kBlockTokens + row % kBlockTokens;
      uint4 wide;
      device::widen_in_order(Stored{}, codes[i].x, wide.x, wide.y);
      device::widen_in_order(Stored{}, codes[i].y, wide.z, wide.w);
      *reinterpret_cast<uint4*>(to + side * S::kSideBytes + token * 128) = wide;
    }
  }
}

template <typename Stored, int kHeadDim>
__device__ void fill_all(const TailParams& params, const tail::PartBlocks& part,
                         const tail::PartRecords<Stored>& records,
                         const Shared<Stored, kHeadDim>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool fetches = threadIdx.x < 32;
  const int tiles = (part.count + kTileBlocks - 1) / kTileBlocks;
  if (fetches) {
    for (int tile = 0; tile < min(tiles, kAhead + 1); ++tile)
      fetch_codes(params, records, part.count, shared, tile, lane);
    tail::put_scales(shared.scales(), records, lane);  // seen with the first tile
  }
  for (int tile = 0; tile < tiles; ++tile) {
    device::wait_phase(shared.landed(tile), shared.landed_parity(tile));
    device::wait_phase(shared.empty(tile), shared.parity(tile) ^ 1);
    widen_tile(shared, tile, part.count - tile * kTileBlocks);
    device::show_to_products();
    device::arrive(shared.full(tile));
    if (tile + kAhead + 1 >= tiles) continue;
    device::sync_named(kFillBarrier, kGroupThreads);  // the stage has been read
    if (fetches) fetch_codes(params, records, part.count, shared, tile + kAhead + 1, lane);
  }
}

// --- Multiplying ---------------------------------------------------------------------------------

// The rows of the thread block: of each warp 16 query heads.
template <typename Stored, int kHeadDim>
struct GroupRows {
  static constexpr bool kFp16 = Stored::kBytes == 1;

  tail::Sums<kHeadDim> sums;
  float scores[kTokens / 8][4] = {};
  std::uint32_t weights[kTileBlocks][4] = {};
};

template <typename Stored, int kHeadDim>
__device__ void begin_scores(GroupRows<Stored, kHeadDim>& rows,
                             const tail::Queries<Stored, kHeadDim>& queries, std::uint32_t k) {
  device::pin(rows.scores);
  device::fence_products();
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    const std::uint32_t at = k + step / 4 * (kTokens * 128) + step % 4 * 32;
    device::multiply_registers<rows.kFp16, false>(rows.scores, queries.words[step],
                                                  device::describe(at, 0), step != 0);
  }
  device::commit_products();
}

template <typename Stored, int kHeadDim>
__device__ void begin_values(GroupRows<Stored, kHeadDim>& rows, std::uint32_t v) {
  device::pin(rows.sums.sums);
  device::fence_products();
#pragma unroll
  for (int i = 0; i < kTileBlocks; ++i) {
    device::multiply_registers<rows.kFp16, true>(
        rows.sums.sums, rows.weights[i],
        device::describe(v + i * kBlockTokens * 128, kTokens * 128), true);
  }
  device::commit_products();
}

// Of the tile's blocks the warp's rows see the first `blocks`, perhaps none.
template <typename Stored, int kHeadDim>
__device__ void weigh_tile(GroupRows<Stored, kHeadDim>& rows, const float (&scale)[2], int blocks,
                           const float4* part_scales) {
  if (blocks <= 0) {
    for (auto& words : rows.weights) words[0] = words[1] = words[2] = words[3] = 0;
    return;
  }
  tail::BlockScales scales[kTileBlocks];
#pragma unroll
  for (int i = 0; i < kTileBlocks; ++i) scales[i] = tail::scales_of<Stored>(part_scales, i);
  float decay[2];
  tail::weigh<kHeadDim, kTileBlocks>(rows.sums, rows.scores, scale, scales, blocks, decay);
  tail::rescale(rows.sums, decay);
#pragma unroll
  for (int i = 0; i < kTileBlocks; ++i)
    tail::pack_block<Stored>(rows.scores[2 * i], rows.scores[2 * i + 1], rows.weights[i]);
}

// One tile after the other: the other thread block of the multiprocessor has work meanwhile.
template <typename Stored, int kHeadDim>
__device__ void attend_to_stored(GroupRows<Stored, kHeadDim>& rows,
                                 const tail::Queries<Stored, kHeadDim>& queries,
                                 const Shared<Stored, kHeadDim>& shared, int tiles,
                                 int stored_blocks, int lane) {
  for (int tile = 0; tile < tiles; ++tile) {
    const std::uint32_t k = device::shared_address(shared.numbers(tile));
    device::wait_phase(shared.full(tile), shared.parity(tile));
    begin_scores(rows, queries, k);
    device::wait_products<0>();
    device::pin(rows.scores);
    weigh_tile(rows, queries.scale, stored_blocks - tile * kTileBlocks,
               shared.scales() + tile * kTileBlocks);
    begin_values(rows, k + Shape<Stored, kHeadDim>::kSideBytes);
    device::wait_products<0>();
    device::pin(rows.sums.sums);
    if (lane == 0) device::arrive(shared.empty(tile));
  }
}

template <typename Stored, int kHeadDim>
__device__ void multiply_all(const TailParams& params, const tail::PartBlocks& part,
                             const Shared<Stored, kHeadDim>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const tail::TailRows warp_rows(params, static_cast<int>(threadIdx.x) / 32 - kTailWarps);
  device::wait_for_previous_kernel();
  const tail::TailHeads<kHeadDim> heads(params, warp_rows, lane);
  GroupRows<Stored, kHeadDim> rows;
  const int tiles = (part.count + kTileBlocks - 1) / kTileBlocks;
  if (tiles != 0) {
    const tail::Queries<Stored, kHeadDim> queries(heads.q, params.scale_log2, lane);
    attend_to_stored(rows, queries, shared, tiles, warp_rows.stored_blocks, lane);
  }
  if (!warp_rows.any()) return;
  if (warp_rows.exact) tail::attend_to_own(rows.sums, heads, params, warp_rows, lane);
  tail::write_part(rows.sums, heads, params, lane);
}

template <typename Stored, int kHeadDim>
__global__ void __launch_bounds__(kThreads, 2)
    tail_wgmma(const __grid_constant__ TailParams params) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  const Shared<Stored, kHeadDim> shared{shared_bytes};
  device::release_dependent_kernel();
  const tail::PartBlocks part(params);
  if (part.count < 0) return device::wait_for_previous_kernel();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape<Stored, kHeadDim>::kNumbers; ++i) {
      device::init_barrier(shared.full(i), kGroupThreads);
      device::init_barrier(shared.empty(i), kTailWarps);  // a lane of each warp
    }
    for (int i = 0; i < Shape<Stored, kHeadDim>::kStages; ++i)
      device::init_barrier(shared.landed(i), 1);
    device::publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kGroupThreads) {
    device::give_up_registers<kFillRegisters>();
    if (!part.older_than_the_call(params)) device::wait_for_previous_kernel();
    const tail::PartRecords<Stored> records(params, part, static_cast<int>(threadIdx.x) % 32);
    fill_all(params, part, records, shared);
  } else {
    device::take_registers<kMultiplyRegisters>();
    multiply_all(params, part, shared);
  }
}

template <typename Stored, int kHeadDim>
void launch_wgmma(const TailParams& params, StreamView stream) {
  constexpr int kShared = Shape<Stored, kHeadDim>::kSharedBytes;
  device::allow_shared_memory(tail_wgmma<Stored, kHeadDim>, kShared);
  device::launch_dependent(tail_wgmma<Stored, kHeadDim>,
                           {.grid = dim3(params.kv_heads, params.parts, tail_row_groups(params)),
                            .threads = kThreads,
                            .shared_bytes = kShared},
                           stream, params);
}

}  // namespace

bool tail_parts_wgmma(const TailParams& params, StorageFormat format, std::uint32_t head_dim,
                      StreamView stream) {
  if (device::compute_capability() != 90 || (head_dim != 64 && head_dim != 128)) return false;
  return device::with_stored_elements(format, [&](auto stored) {
    head_dim == 64 ? launch_wgmma<decltype(stored), 64>(params, stream)
                   : launch_wgmma<decltype(stored), 128>(params, stream);
  });
}

}  // namespace kvtier::kernels::cuda
