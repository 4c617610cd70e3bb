#include "kernels/cuda/attention_decode.cuh"

#include <algorithm>

#include "core/base/check.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/parts.cuh"
#include "kernels/cuda/error.h"
#include "kernels/cuda/launch.cuh"

namespace kvtier::kernels::cuda {
namespace {

using device::BlockBytes;
using device::BlockScales;
using device::Deal;
using device::DecodeTile;
using device::ExactBlock;
using device::Queries;
using device::StoredBlocks;

constexpr int kThreads = kDecodeWarps * 32;
constexpr std::uint32_t kGroupMax = 16;

template <typename Stored, int kHeadDim>
struct DecodeShape {
  static constexpr int kSlotBytes = BlockBytes<Stored, kHeadDim>::kBlock;
  // Enough copies in flight to cover the memory's latency, with two thread blocks an SM or more.
  static constexpr int kSlots = kSlotBytes <= 2048 ? 4 : kSlotBytes <= 8192 ? 3 : 2;
  static constexpr int kRingBytes = kDecodeWarps * kSlots * kSlotBytes;
  // Of an SM; what limits the registers of a thread.
  static constexpr int thread_blocks(int head_tiles) {
    return head_tiles == 1 && kHeadDim <= 128 && kRingBytes <= 52 * 1024 ? 4 : 2;
  }

  static constexpr int merge_bytes(int head_tiles) {
    return kDecodeWarps * head_tiles * 8 * (kHeadDim + 2) * static_cast<int>(sizeof(float));
  }
  // Where the barriers begin, behind the rings, in whose place the warps' tiles come at the end.
  static constexpr int barriers_at(int head_tiles) {
    return kRingBytes > merge_bytes(head_tiles) ? kRingBytes : merge_bytes(head_tiles);
  }
  static constexpr int shared_bytes(int head_tiles) {
    return barriers_at(head_tiles) +
           kDecodeWarps * kSlots * static_cast<int>(sizeof(std::uint64_t));
  }
};

// The blocks that a row attends to, numbered: those with sinks, then those of the window, which may
// begin in the last with sinks, the row's own last. Without a window they are all.
struct SeenBlocks {
  std::uint32_t sinks = 0;   // blocks
  std::uint32_t window = 0;  // the first
  std::uint32_t own;         // its number
  std::uint32_t from = 0;    // the first token of the window that is no sink
  std::uint32_t lowest = 0;  // the first token of the window

  __device__ SeenBlocks(const Sight& sight, std::uint32_t position) : own(position / kTileTokens) {
    if (sight.window == 0) return;
    const std::uint32_t own_block = own;
    lowest = position < sight.window ? 0 : position + 1 - sight.window;
    from = max(lowest, sight.sinks);
    sinks = min((sight.sinks + kTileTokens - 1) / kTileTokens, own_block);
    window = min(from / kTileTokens, own_block);
    own = sinks + own_block - window;
  }
  __device__ bool is_sink(std::uint32_t number) const { return number < sinks; }
  __device__ std::uint32_t block(std::uint32_t number) const {
    return is_sink(number) ? number : window + (number - sinks);
  }
};

// A block of which tokens `from` to `to - 1` alone are seen.
template <typename Block>
struct Partly {
  using Element = typename Block::Element;
  using Deal = typename Block::Deal;

  const Block& block;
  int from, to;

  template <int kWords>
  __device__ void k_piece(int which, int piece, std::uint32_t (&words)[kWords]) const {
    block.k_piece(which, piece, words);
  }
  template <int kWords>
  __device__ void v_piece(int which, int piece, std::uint32_t (&words)[kWords]) const {
    block.v_piece(which, piece, words);
  }
  __device__ bool sees(int token) const { return token >= from && token < to && block.sees(token); }
};

// What a thread block has to do.
struct PartWork {
  std::uint32_t row;
  std::uint32_t kv_head;
  std::uint32_t position;
  std::uint32_t first;  // number of the first block
  int stored_blocks;
  int exact_tokens;  // of the row's own block, up to the row; 0 where it is in another part
};

__device__ bool find_work(const DecodeParams& params, const SeenBlocks& seen,
                          std::uint32_t position, PartWork& work) {
  work.kv_head = blockIdx.x;
  work.position = position;
  work.first = blockIdx.y * params.part_blocks;
  work.row = blockIdx.z;
  if (params.step.row_sequence[work.row] == kNoSequence || seen.own < work.first) return false;
  const std::uint32_t before = seen.own - work.first;
  work.stored_blocks = static_cast<int>(min(before, params.part_blocks));
  work.exact_tokens =
      before < params.part_blocks ? static_cast<int>(position % kTileTokens) + 1 : 0;
  return true;
}

// The records of a warp's blocks, a lane each.
template <typename Stored>
struct WarpRecords {
  const std::byte* record = nullptr;
  float k_scale = 1;
  float v_scale = 1;

  __device__ WarpRecords(const DecodeParams& params, const PartWork& work, const SeenBlocks& seen,
                         int warp, int lane) {
    const int block = warp + lane * kDecodeWarps;
    if (block >= work.stored_blocks) return;
    const std::uint32_t sequence = params.step.row_sequence[work.row];
    record = params.step.block_tables[sequence][seen.block(work.first + block)];
    if constexpr (Stored::kBytes == 1) {
      const std::size_t head = work.kv_head * sizeof(float);
      k_scale = *reinterpret_cast<const float*>(record + params.k_scale_offset + head);
      v_scale = *reinterpret_cast<const float*>(record + params.v_scale_offset + head);
    }
  }
  // Computed here, lest the first copies wait for the scales.
  __device__ BlockScales scales_of(int index) const {
    if constexpr (Stored::kBytes != 1) return {};
    const float v = __shfl_sync(0xFFFFFFFF, v_scale, index);
    return {__shfl_sync(0xFFFFFFFF, k_scale, index), __log2f(v), __frcp_rn(v)};
  }
  __device__ const std::byte* of(int index) const {
    return reinterpret_cast<const std::byte*>(
        __shfl_sync(0xFFFFFFFF, reinterpret_cast<unsigned long long>(record), index));
  }
};

template <typename Stored, int kHeadDim>
__device__ ExactBlock<Stored, kHeadDim> exact_block(const DecodeParams& params,
                                                    const PartWork& work, int lane) {
  const ExactPage page = params.step.pages[params.step.row_page[work.row]];
  const Bf16* k = page.values + params.layer * page.layer_stride +
                  std::size_t{work.kv_head} * kTileTokens * kHeadDim;
  const Bf16* v = k + std::size_t{params.kv_heads} * kTileTokens * kHeadDim;
  return {k, v, work.exact_tokens, lane};
}

// The warps' tiles into one part of the workspace.
template <typename Stored, int kHeadDim, int kHeadTiles>
__device__ void merge_warps(const DecodeTile<kHeadDim, kHeadTiles>& tile,
                            const DecodeParams& params, const PartWork& work, std::byte* shared) {
  constexpr int kRows = kHeadTiles * 8;
  constexpr int kVDims = Deal<Stored, kHeadDim>::kVDims;
  auto* sums = reinterpret_cast<float*>(shared);  // [warps][kRows][kHeadDim]
  float* largest = sums + kDecodeWarps * kRows * kHeadDim;
  float* totals = largest + kDecodeWarps * kRows;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = static_cast<int>(params.group);

  __syncthreads();  // the rings are done with
#pragma unroll
  for (int at = 0; at < kHeadTiles * 2; ++at) {
    const int row = at / 2 * 8 + lane % 4 * 2 + at % 2;
    const float total = device::sum_of_column(tile.total[at / 2][at % 2]);
    if (row >= group) continue;
    if (lane / 4 == 0) {
      largest[warp * kRows + row] = tile.largest[at / 2][at % 2];
      totals[warp * kRows + row] = total;
    }
    float* to = sums + (warp * kRows + row) * kHeadDim;
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; i += 4) {
      const int dim = Deal<Stored, kHeadDim>::v_dim(i / kVDims, lane / 4) + i % kVDims;
      const float* first = tile.sums[at / 2][i / 2] + at % 2;
      const float* second = tile.sums[at / 2][i / 2 + 1] + at % 2;
      *reinterpret_cast<float4*>(to + dim) = {first[0], first[2], second[0], second[2]};
    }
  }
  __syncthreads();

  const std::size_t part =
      ((std::size_t{work.row} * params.kv_heads + work.kv_head) * params.parts + blockIdx.y) *
      params.group;
  for (int i = static_cast<int>(threadIdx.x); i < group * (kHeadDim / 4); i += kThreads) {
    const int row = i / (kHeadDim / 4);
    const int dim = i % (kHeadDim / 4) * 4;
    float most = -INFINITY;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) most = fmaxf(most, largest[w * kRows + row]);
    float total = 0;
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float decay = device::exp2_fast(largest[w * kRows + row] - most);
      const float4 x = *reinterpret_cast<const float4*>(sums + (w * kRows + row) * kHeadDim + dim);
      total = __fmaf_rn(totals[w * kRows + row], decay, total);
      sum = {__fmaf_rn(x.x, decay, sum.x), __fmaf_rn(x.y, decay, sum.y),
             __fmaf_rn(x.z, decay, sum.z), __fmaf_rn(x.w, decay, sum.w)};
    }
    *reinterpret_cast<float4*>(params.part_sums + (part + row) * kHeadDim + dim) = sum;
    if (dim == 0) params.part_sizes[part + row] = {most, total};
  }
}

// kWindowed: rows have a window, and perhaps sinks.
template <typename Stored, int kHeadDim, int kHeadTiles, bool kWindowed>
__global__ void __launch_bounds__(kThreads,
                                  (DecodeShape<Stored, kHeadDim>::thread_blocks(kHeadTiles)))
    decode_parts(const __grid_constant__ DecodeParams params) {
  using Shape = DecodeShape<Stored, kHeadDim>;
  using StoredQueries = Queries<Stored, Stored, kHeadDim, kHeadTiles>;
  extern __shared__ __align__(16) std::byte shared[];
  device::release_dependent_kernel();
  const std::uint32_t position = params.step.positions[blockIdx.z];
  const SeenBlocks seen(kWindowed ? params.sight : Sight{}, position);
  PartWork work;
  // Tables are older than the kernel before this one, which may be at its end still, and so are
  // records: a row of its own completes no block but its own, which it attends to exactly. The
  // first copies are under way by then.
  if (!find_work(params, seen, position, work)) return device::wait_for_previous_kernel();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;

  const WarpRecords<Stored> records(params, work, seen, warp, lane);
  const int blocks = (work.stored_blocks - warp + kDecodeWarps - 1) / kDecodeWarps;
  StoredBlocks<Stored, kHeadDim, Shape::kSlots> stored(
      shared, reinterpret_cast<std::uint64_t*>(shared + Shape::barriers_at(kHeadTiles)), warp,
      lane);
  const std::size_t head_at = std::size_t{work.kv_head} * BlockBytes<Stored, kHeadDim>::kHead;
  const auto fetch = [&](int index) {
    const bool wanted = index < blocks;
    const std::byte* record = wanted ? records.of(index) : nullptr;
    stored.fetch(index, wanted, record + params.k_offset + head_at,
                 record + params.v_offset + head_at);
  };
#pragma unroll
  for (int index = 0; index < Shape::kSlots; ++index) fetch(index);
  device::wait_for_previous_kernel();

  const std::size_t first_head =
      std::size_t{work.row} * params.kv_heads * params.group + work.kv_head * params.group;
  const Bf16* const q = params.q + first_head * kHeadDim;
  const int group = static_cast<int>(params.group);
  DecodeTile<kHeadDim, kHeadTiles> tile;
  if (work.exact_tokens != 0 && warp == work.stored_blocks % kDecodeWarps) {
    const Queries<Stored, device::StoredBf16, kHeadDim, kHeadTiles> queries(
        q, group, params.scale_log2, lane);
    const auto exact = exact_block<Stored, kHeadDim>(params, work, lane);
    if constexpr (kWindowed) {
      // Sinks are in a window that begins before this block.
      const int own = static_cast<int>(position - position % kTileTokens);
      const Partly<ExactBlock<Stored, kHeadDim>> part{exact, static_cast<int>(seen.lowest) - own,
                                                      static_cast<int>(kTileTokens)};
      device::attend_to_block(tile, queries, part, {}, lane);
    } else {
      device::attend_to_block(tile, queries, exact, {}, lane);
    }
  }
  if constexpr (kWindowed) {
    const Bf16* const sink_q = params.sight.sink_q + first_head * kHeadDim;
    const auto number = [&](int index) { return work.first + warp + index * kDecodeWarps; };
    bool at_sinks = blocks > 0 && seen.is_sink(number(0));
    StoredQueries queries(at_sinks ? sink_q : q, group, params.scale_log2, lane);
    for (int index = 0; index < blocks; ++index) {
      if (at_sinks && !seen.is_sink(number(index))) {
        at_sinks = false;
        queries = StoredQueries(q, group, params.scale_log2, lane);
      }
      const int first = static_cast<int>(seen.block(number(index)) * kTileTokens);
      const int from = at_sinks ? 0 : static_cast<int>(seen.from) - first;
      const int to =
          at_sinks ? static_cast<int>(params.sight.sinks) - first : static_cast<int>(kTileTokens);
      stored.wait(index);
      const Partly<decltype(stored)> part{stored, from, to};
      device::attend_to_block(tile, queries, part, records.scales_of(index), lane);
      fetch(index + Shape::kSlots);
    }
  } else {
    const StoredQueries queries(q, group, params.scale_log2, lane);
    for (int index = 0; index < blocks; ++index) {
      stored.wait(index);
      device::attend_to_block(tile, queries, stored, records.scales_of(index), lane);
      fetch(index + Shape::kSlots);
    }
  }
  device::wait_copies<0>();
  merge_warps<Stored>(tile, params, work, shared);
}

// `kBeside`: what comes next may fetch its first blocks or weights beside the last parts. Not where
// four thread blocks of parts fit a multiprocessor: those of the next layer would lie unevenly.
template <int kHeadDim, bool kBeside>
__global__ void __launch_bounds__(device::kCombineThreads)
    combine_decode(const __grid_constant__ DecodeParams params) {
  const std::uint32_t row = blockIdx.y;
  const std::uint32_t head = blockIdx.x;
  if constexpr (kBeside) device::release_dependent_kernel();
  const std::uint32_t position = params.step.positions[row];
  if (params.step.row_sequence[row] == kNoSequence) return;
  device::wait_for_previous_kernel();  // which did not write what is read above
  if constexpr (!kBeside) device::release_dependent_kernel();
  const std::size_t first =
      (std::size_t{row} * params.kv_heads + head / params.group) * params.parts * params.group +
      head % params.group;
  const std::uint32_t heads = params.kv_heads * params.group;
  device::combine_parts<kHeadDim>(
      {params.part_sizes, params.part_sums, first, params.group,
       static_cast<int>(SeenBlocks(params.sight, position).own / params.part_blocks) + 1},
      params.out + (std::size_t{row} * heads + head) * kHeadDim);
}

template <typename Stored, int kHeadDim, int kHeadTiles>
void launch_decode(const DecodeParams& params, StreamView stream) {
  constexpr int kShared = DecodeShape<Stored, kHeadDim>::shared_bytes(kHeadTiles);
  const std::uint32_t rows = params.step.rows;
  const auto kernel = params.sight.window == 0 ? decode_parts<Stored, kHeadDim, kHeadTiles, false>
                                               : decode_parts<Stored, kHeadDim, kHeadTiles, true>;
  device::allow_shared_memory(kernel, kShared);
  device::launch_dependent(kernel,
                           {.grid = dim3(params.kv_heads, params.parts, rows),
                            .threads = kThreads,
                            .shared_bytes = kShared},
                           stream, params);
  device::launch_dependent(
      combine_decode<kHeadDim, DecodeShape<Stored, kHeadDim>::thread_blocks(kHeadTiles) <= 2>,
      {.grid = dim3(params.kv_heads * params.group, rows), .threads = device::kCombineThreads},
      stream, params);
}

template <typename Stored, int kHeadDim>
void launch_decode_of_group(const DecodeParams& params, StreamView stream) {
  if (params.group <= 8) {
    launch_decode<Stored, kHeadDim, 1>(params, stream);
  } else {
    launch_decode<Stored, kHeadDim, 2>(params, stream);
  }
}

template <typename Stored>
void launch_decode_of_type(std::uint32_t head_dim, const DecodeParams& params, StreamView stream) {
  switch (head_dim) {
    case 64:
      return launch_decode_of_group<Stored, 64>(params, stream);
    case 96:
      return launch_decode_of_group<Stored, 96>(params, stream);
    case 128:
      return launch_decode_of_group<Stored, 128>(params, stream);
    default:
      return launch_decode_of_group<Stored, 256>(params, stream);
  }
}

std::uint32_t part_blocks_of(const RecordLayout& layout) {
  return part_blocks(layout.format != StorageFormat::bf16);
}

// Of a row with a window a block may count twice: sinks end in it, and the window begins there.
std::uint32_t parts_of(const RecordLayout& layout, std::uint32_t context_max, const Sight& sight) {
  std::uint32_t blocks = divided_up(context_max, kTileTokens);
  if (sight.window != 0) {
    const std::uint32_t seen =
        divided_up(sight.sinks, kTileTokens) + divided_up(sight.window, kTileTokens) + 1;
    blocks = std::min(blocks + 1, seen);
  }
  return std::max(divided_up(blocks, part_blocks_of(layout)), 1U);
}

std::size_t part_rows(const RecordLayout& layout, std::uint32_t rows, std::uint32_t heads,
                      std::uint32_t context_max, const Sight& sight) {
  return std::size_t{rows} * heads * parts_of(layout, context_max, sight);
}

}  // namespace

std::size_t decode_workspace_bytes(const RecordLayout& layout, std::uint32_t rows,
                                   std::uint32_t heads, std::uint32_t context_max,
                                   const Sight& sight) {
  return part_rows(layout, rows, heads, context_max, sight) *
         (layout.head_dim_v * sizeof(float) + sizeof(float2));
}

void decode_attention(const DecodeAttentionArgs& args, StreamView stream) {
  const RecordLayout& layout = args.layout;
  const std::uint32_t dim = layout.head_dim_k;
  KVTIER_CHECK(layout.block_tokens == kTileTokens && dim == layout.head_dim_v);
  KVTIER_CHECK(dim == 64 || dim == 96 || dim == 128 || dim == 256);
  KVTIER_CHECK(args.heads % layout.kv_heads == 0 && args.heads / layout.kv_heads <= kGroupMax);
  KVTIER_CHECK(args.sight.sinks == 0 ||
               (args.sight.window >= kTileTokens && args.sight.sink_q != nullptr));
  if (args.step.rows == 0) return;

  DecodeParams params = {};
  params.step = args.step;
  params.q = args.q;
  params.out = args.out;
  params.part_sums = static_cast<float*>(args.workspace);
  params.part_sizes = reinterpret_cast<float2*>(
      params.part_sums +
      part_rows(layout, args.step.rows, args.heads, args.context_max, args.sight) * dim);
  params.k_offset = layout.k_offset(args.layer, 0);
  params.v_offset = layout.v_offset(args.layer, 0);
  params.k_scale_offset = layout.scale_offset(args.layer, false, 0);
  params.v_scale_offset = layout.scale_offset(args.layer, true, 0);
  params.layer = args.layer;
  params.kv_heads = layout.kv_heads;
  params.group = args.heads / layout.kv_heads;
  params.part_blocks = part_blocks_of(layout);
  params.parts = parts_of(layout, args.context_max, args.sight);
  params.sight = args.sight;
  params.scale_log2 = args.scale * 1.44269504F;
  const bool known = device::with_stored_elements(layout.format, [&](auto stored) {
    launch_decode_of_type<decltype(stored)>(dim, params, stream);
  });
  KVTIER_CHECK(known && "decode_attention: records of this format are the CPU backend's alone");
}

}  // namespace kvtier::kernels::cuda
