// Attention of a few consecutive rows of one sequence over many stored blocks. A thread block is
// one part (kTailPartBlocks blocks at a fixed place of the context) of one KV head. Its warps share
// the part's blocks; each has the query heads of a few neighbouring rows, none of another block
// than the others, as the rows of one tensor-core tile (kernels/cuda/attention_tail.cuh). What a
// row's tile has in its other rows changes no bit of it.
#include "kernels/cuda/attention_tail.cuh"

#include <algorithm>
#include <bit>

#include "core/base/check.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/error.h"

namespace kvtier::kernels::cuda {
namespace {

using tail::Deal;
using tail::DecodeTile;
using tail::ExactBlock;
using tail::Queries;
using tail::SlotBlock;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
// Of a prompt of 32k tokens, the parts of 8 heads come to just under two rounds of an H100's SMs.
constexpr int kTailPartBlocks = 24;
static_assert(kTailPartBlocks <= 32, "a lane for each block of a part");
constexpr int kTileRows = 16;

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

template <typename Stored, int kHeadDim>
struct TailShape {
  static constexpr int kSlotBytes = SlotBlock<Stored, kHeadDim>::kBytes;
  static constexpr int kStages = kSlotBytes <= 8192 ? 3 : 2;
  static constexpr int kSharedBytes = kStages * kWarps * kSlotBytes;
  static constexpr int kThreadBlocks = kHeadDim <= 128 ? 3 : 2;
};

// The rows of one warp.
struct TailRows {
  std::uint32_t first;  // position of the tile's first token, perhaps before the call's first row
  std::uint32_t last;   // of its last that is a row of the call
  int stored_blocks;    // of the part
  bool exact;           // the rows' own block is in the part

  __device__ TailRows(const TailParams& params, int warp) {
    const std::uint32_t tile = blockIdx.z * kWarps + warp + params.start / params.tile_tokens;
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
__device__ int row_of(const TailParams& params, const TailRows& rows, int tile_row) {
  const std::uint32_t token = static_cast<std::uint32_t>(tile_row) / params.group;
  const std::uint32_t position = rows.first + token;
  const bool there =
      token < params.tile_tokens && position >= params.start && position <= rows.last;
  return there ? static_cast<int>(position - params.start) : -1;
}

template <typename Stored, int kHeadDim>
struct TailQueries : Queries<Stored, kHeadDim, true> {
  using Base = Queries<Stored, kHeadDim, true>;

  __device__ TailQueries(const TailParams& params, const TailRows& rows, int lane)
      : Base(nullptr, 0, lane) {
    const std::size_t heads = std::size_t{params.kv_heads} * params.group;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int tile_row = half * 8 + lane / 4;
      const int row = row_of(params, rows, tile_row);
      if (row < 0) continue;
      const std::size_t head = blockIdx.x * params.group + tile_row % params.group;
      const Bf16* q = params.q + (row * heads + head) * kHeadDim;
#pragma unroll
      for (int step = 0; step < Base::kSteps; ++step) {
        const int dim =
            Base::Deal::k_dim(step / Base::kPieceSteps, lane % 4) + step % Base::kPieceSteps * 4;
        uint2 x = *reinterpret_cast<const uint2*>(q + dim);
        Base::order(x.x, x.y);
        this->words[step][half * 2] = x.x;
        this->words[step][half * 2 + 1] = x.y;
      }
    }
  }
};

// The rows' own block: each sees its tokens up to itself.
template <typename Stored, int kHeadDim, typename Tile, typename Q>
__device__ void attend_to_exact(Tile& tile, const Q& queries, const TailParams& params,
                                const TailRows& rows, int lane) {
  const std::uint32_t any_row = max(rows.first, params.start) - params.start;
  const ExactPage page = params.pages[params.row_page[any_row]];
  const Bf16* k = page.values + params.layer * page.layer_stride +
                  std::size_t{blockIdx.x} * kTileTokens * kHeadDim;
  const Bf16* v = k + std::size_t{params.kv_heads} * kTileTokens * kHeadDim;
  const ExactBlock<Stored, kHeadDim> block = {k, v, static_cast<int>(rows.last % kTileTokens) + 1,
                                              lane};
  float scores[2][4] = {};
  tail::score_block(queries, block, scores);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t of_tile = (half * 8 + lane / 4) / params.group;
    const std::uint32_t token = min(of_tile, params.tile_tokens - 1);
    const int own = static_cast<int>((rows.first + token) % kTileTokens);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i / 2 * 8 + lane % 4 * 2 + i % 2 > own) scores[i / 2][half * 2 + i % 2] = -INFINITY;
    }
  }
  std::uint32_t weights[4];
  tail::weigh_block(tile, block, scores, params.scale_log2, 1.0F, lane, weights);
  tail::add_block(tile, block, weights);
}

template <typename Stored, int kHeadDim>
__device__ void write_part(const DecodeTile<kHeadDim, true>& tile, const TailParams& params,
                           const TailRows& rows, int lane) {
  using Tile = DecodeTile<kHeadDim, true>;
  constexpr int kVDims = Deal<Stored, kHeadDim>::kVDims;
  const std::size_t heads = std::size_t{params.kv_heads} * params.group;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = device::sum_of_row(tile.total[half]);
    const int tile_row = half * 8 + lane / 4;
    const int row = row_of(params, rows, tile_row);
    if (row < 0) continue;
    const std::size_t head = blockIdx.x * params.group + tile_row % params.group;
    const std::size_t part = (row * heads + head) * params.parts + blockIdx.y;
    if (lane % 4 == 0) params.part_sizes[part] = {tile.largest[half], total};
#pragma unroll
    for (int i = 0; i < Tile::kTiles; i += 4) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int dim = Deal<Stored, kHeadDim>::v_dim(i / kVDims, lane % 4 * 2 + c) + i % kVDims;
        const int at = half * 2 + c;
        *reinterpret_cast<float4*>(params.part_sums + part * kHeadDim + dim) = {
            tile.sums[i][at], tile.sums[i + 1][at], tile.sums[i + 2][at], tile.sums[i + 3][at]};
      }
    }
  }
}

// Blocks come four at a time, one copied by each warp and multiplied by all.
template <typename Stored, int kHeadDim>
__global__ void __launch_bounds__(kThreads, (TailShape<Stored, kHeadDim>::kThreadBlocks))
    tail_parts(const __grid_constant__ TailParams params) {
  using Shape = TailShape<Stored, kHeadDim>;
  using Slot = SlotBlock<Stored, kHeadDim>;
  extern __shared__ __align__(16) std::byte shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  device::release_dependent_kernel();
  const TailRows rows(params, warp);
  const std::uint32_t first_block = blockIdx.y * kTailPartBlocks;
  const std::uint32_t end_row = params.start + params.rows - 1;
  const std::uint32_t end_tile =
      ((params.start / params.tile_tokens + blockIdx.z * kWarps + kWarps) * params.tile_tokens) - 1;
  const std::uint32_t own_most = min(end_row, end_tile) / kTileTokens;
  if (own_most < first_block) return device::wait_for_previous_kernel();
  const int blocks =
      static_cast<int>(min(own_most - first_block, static_cast<std::uint32_t>(kTailPartBlocks)));
  // Tables, and records of blocks that were complete before the call's first row, are older than
  // the kernel before this one, which may be at its end still: their copies are under way by then.
  // A block that the call's own rows complete has its record from that very kernel.
  if (first_block + blocks > params.start / kTileTokens) device::wait_for_previous_kernel();

  // A lane for each block of the part.
  const std::byte* record = nullptr;
  float k_scale = 1;
  float v_scale = 1;
  if (lane < blocks) {
    record = params.table[first_block + lane];
    if constexpr (Stored::kBytes == 1) {
      const std::size_t head = blockIdx.x * sizeof(float);
      k_scale = *reinterpret_cast<const float*>(record + params.k_scale_offset + head);
      v_scale = *reinterpret_cast<const float*>(record + params.v_scale_offset + head);
    }
  }
  const std::size_t head_at = std::size_t{blockIdx.x} * Slot::kHeadBytes;
  const auto slot = [&](int stage, int of_stage) {
    return shared + (stage % Shape::kStages * kWarps + of_stage) * Shape::kSlotBytes;
  };
  const auto fetch = [&](int stage) {
    const int block = stage * kWarps + warp;
    if (block < blocks) {
      const auto* from = reinterpret_cast<const std::byte*>(
          __shfl_sync(0xFFFFFFFF, reinterpret_cast<unsigned long long>(record), block));
      Slot::fetch(slot(stage, warp), from + params.k_offset + head_at,
                  from + params.v_offset + head_at, lane);
    }
    device::commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < Shape::kStages - 1; ++stage) fetch(stage);
  device::wait_for_previous_kernel();

  const TailQueries<Stored, kHeadDim> queries(params, rows, lane);
  DecodeTile<kHeadDim, true> tile;
  for (int stage = 0; stage * kWarps < blocks; ++stage) {
    device::wait_copies<Shape::kStages - 2>();
    __syncthreads();  // the stage is there for all, and all have done with the one before
    fetch(stage + Shape::kStages - 1);
#pragma unroll 1
    for (int i = 0; i < kWarps; ++i) {
      const int block = stage * kWarps + i;
      if (block >= rows.stored_blocks) break;
      float factor = params.scale_log2;
      float value_scale = 1;
      if constexpr (Stored::kBytes == 1) {
        factor = __fmul_rn(factor, __shfl_sync(0xFFFFFFFF, k_scale, block));
        value_scale = __shfl_sync(0xFFFFFFFF, v_scale, block);
      }
      tail::attend_to_block(tile, queries, Slot{slot(stage, i), lane}, factor, value_scale, lane);
    }
  }
  device::wait_copies<0>();
  if (!rows.any()) return;
  if (rows.exact) attend_to_exact<Stored, kHeadDim>(tile, queries, params, rows, lane);
  write_part<Stored, kHeadDim>(tile, params, rows, lane);
}

// out = the parts' sums, each brought to the largest score of all, over the sum of all weights.
// Groups of kHeadDim / 4 threads take the parts in turn.
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads)
    combine_tail(const __grid_constant__ TailParams params) {
  constexpr int kColumns = kHeadDim / 4;
  constexpr int kTeams = kThreads / kColumns;
  __shared__ float4 sums[kTeams][kColumns];
  __shared__ float totals[kTeams];
  __shared__ float most_of_warp[kWarps];
  device::wait_for_previous_kernel();
  const std::uint32_t row = blockIdx.y;
  const std::size_t of_row = std::size_t{row} * gridDim.x + blockIdx.x;
  const std::size_t first = of_row * params.parts;
  const int parts = static_cast<int>((params.start + row) / (kTileTokens * kTailPartBlocks)) + 1;
  const int team = static_cast<int>(threadIdx.x) / kColumns;
  const int column = static_cast<int>(threadIdx.x) % kColumns;
  const int thread = static_cast<int>(threadIdx.x);
  float most = -INFINITY;
  for (int part = thread; part < parts; part += kThreads) {
    most = fmaxf(most, params.part_sizes[first + part].x);
  }
#pragma unroll
  for (int i = 16; i > 0; i /= 2) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, i));
  if (thread % 32 == 0) most_of_warp[thread / 32] = most;
  __syncthreads();
#pragma unroll
  for (const float other : most_of_warp) most = fmaxf(most, other);
  if (team < kTeams) {
    float total = 0;
    float4 sum = {0, 0, 0, 0};
#pragma unroll 4
    for (int part = team; part < parts; part += kTeams) {
      const float2 size = params.part_sizes[first + part];
      const float4 x = *reinterpret_cast<const float4*>(params.part_sums +
                                                        (first + part) * kHeadDim + column * 4);
      const float decay = device::exp2_fast(size.x - most);
      total = __fmaf_rn(size.y, decay, total);
      sum = {__fmaf_rn(x.x, decay, sum.x), __fmaf_rn(x.y, decay, sum.y),
             __fmaf_rn(x.z, decay, sum.z), __fmaf_rn(x.w, decay, sum.w)};
    }
    sums[team][column] = sum;
    if (column == 0) totals[team] = total;
  }
  __syncthreads();
  if (threadIdx.x >= kColumns) return;
  float total = 0;
  float4 sum = {0, 0, 0, 0};
#pragma unroll
  for (int other = 0; other < kTeams; ++other) {
    const float4 x = sums[other][threadIdx.x];
    total = __fadd_rn(total, totals[other]);
    sum = {__fadd_rn(sum.x, x.x), __fadd_rn(sum.y, x.y), __fadd_rn(sum.z, x.z),
           __fadd_rn(sum.w, x.w)};
  }
  const float inverse = __frcp_rn(total);
  reinterpret_cast<uint2*>(params.out + of_row * kHeadDim)[threadIdx.x] = {
      device::pack_bf16(sum.x * inverse, sum.y * inverse),
      device::pack_bf16(sum.z * inverse, sum.w * inverse)};
}

template <typename Stored, int kHeadDim>
void launch_tail(const TailParams& params, StreamView stream) {
  constexpr int kShared = TailShape<Stored, kHeadDim>::kSharedBytes;
  const std::uint32_t tiles =
      (params.start + params.rows - 1) / params.tile_tokens - params.start / params.tile_tokens + 1;
  device::allow_shared_memory(tail_parts<Stored, kHeadDim>, kShared);
  device::launch_dependent(
      tail_parts<Stored, kHeadDim>,
      {.grid = dim3(params.kv_heads, params.parts, (tiles + kWarps - 1) / kWarps),
       .threads = kThreads,
       .shared_bytes = kShared},
      stream, params);
  device::launch_dependent(
      combine_tail<kHeadDim>,
      {.grid = dim3(params.kv_heads * params.group, params.rows), .threads = kThreads}, stream,
      params);
}

template <typename Stored>
void launch_tail_of_type(std::uint32_t head_dim, const TailParams& params, StreamView stream) {
  switch (head_dim) {
    case 64:
      return launch_tail<Stored, 64>(params, stream);
    case 96:
      return launch_tail<Stored, 96>(params, stream);
    case 128:
      return launch_tail<Stored, 128>(params, stream);
    default:
      return launch_tail<Stored, 256>(params, stream);
  }
}

std::uint32_t parts_of(std::uint32_t start, std::uint32_t rows) {
  return (start + rows - 1) / (kTileTokens * kTailPartBlocks) + 1;
}

}  // namespace

std::size_t tail_workspace_bytes(const RecordLayout& layout, std::uint32_t heads,
                                 std::uint32_t start, std::uint32_t rows) {
  return std::size_t{rows} * heads * parts_of(start, rows) *
         (layout.head_dim_v * sizeof(float) + sizeof(float2));
}

void tail_attention(const TailAttentionArgs& args, StreamView stream) {
  const RecordLayout& layout = args.layout;
  const std::uint32_t dim = layout.head_dim_k;
  KVTIER_CHECK(layout.block_tokens == kTileTokens && layout.head_dim_v == dim);
  KVTIER_CHECK(dim == 64 || dim == 96 || dim == 128 || dim == 256);
  KVTIER_CHECK(args.heads % layout.kv_heads == 0 && args.heads / layout.kv_heads <= kTileRows);
  if (args.rows == 0) return;
  TailParams params = {};
  params.q = args.q;
  params.out = args.out;
  params.table = args.block_table;
  params.pages = args.pages;
  params.row_page = args.row_page;
  params.group = args.heads / layout.kv_heads;
  params.tile_tokens = std::bit_floor(kTileRows / params.group);
  params.start = args.start;
  params.rows = args.rows;
  params.parts = parts_of(args.start, args.rows);
  params.part_sums = static_cast<float*>(args.workspace);
  params.part_sizes = reinterpret_cast<float2*>(
      params.part_sums + std::size_t{args.rows} * args.heads * params.parts * dim);
  params.k_offset = layout.k_offset(args.layer, 0);
  params.v_offset = layout.v_offset(args.layer, 0);
  params.k_scale_offset = layout.scale_offset(args.layer, false, 0);
  params.v_scale_offset = layout.scale_offset(args.layer, true, 0);
  params.layer = args.layer;
  params.kv_heads = layout.kv_heads;
  params.scale_log2 = args.scale * 1.44269504F;
  switch (layout.format) {
    case StorageFormat::fp8_e4m3:
      return launch_tail_of_type<tail::StoredE4m3>(dim, params, stream);
    case StorageFormat::fp8_e5m2:
      return launch_tail_of_type<tail::StoredE5m2>(dim, params, stream);
    case StorageFormat::bf16:
      return launch_tail_of_type<tail::StoredBf16>(dim, params, stream);
    case StorageFormat::f32:
    case StorageFormat::raw:
    case StorageFormat::int8:
    case StorageFormat::int4:
      break;
  }
  KVTIER_CHECK(!"tail_attention: records of this format are the CPU backend's alone");
}

}  // namespace kvtier::kernels::cuda
