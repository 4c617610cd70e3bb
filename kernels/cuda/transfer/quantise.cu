// Exact pages into records: a warp to a head of K or V, which it reads once, keeping it in
// registers between the largest magnitude and the conversion.
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/transfer/transfer.cuh"

namespace kvtier::kernels::cuda {
namespace {

constexpr std::uint32_t kWarp = 32;
constexpr std::uint32_t kWarpsPerBlock = 8;
// Chunks a lane keeps: 8 of 16 bytes hold a head of 16 tokens by 128 BF16 elements. What is longer
// is read again, from L1.
constexpr std::uint32_t kKept = 8;

template <DType kPage, int kCount>
__device__ __forceinline__ float larger_magnitude(const Chunk<kCount * size_of(kPage)>& chunk,
                                                  float amax) {
  const Decoded<kPage, kCount> decoded(chunk);
#pragma unroll
  for (int i = 0; i < kCount; ++i) amax = fmaxf(amax, fabsf(decoded.x[i]));  // passes over NaN
  return amax;
}

// One head: `chunks` chunks of kCount elements, chunk `at` of which lies at from(at). Called by a
// whole warp.
template <DType kPage, DType kStored, int kCount, typename From>
__device__ __forceinline__ void quantise_head(const From& from, std::byte* to, float* scale,
                                              std::uint32_t chunks, std::uint32_t lane) {
  constexpr int kFromBytes = kCount * size_of(kPage);
  constexpr int kToBytes = kCount * size_of(kStored);
  constexpr bool kScaled = is_fp8(kStored);
  Chunk<kFromBytes> kept[kKept];
#pragma unroll
  for (std::uint32_t i = 0; i < kKept; ++i) {
    const std::uint32_t at = lane + i * kWarp;
    kept[i] = at < chunks ? load_chunk<kFromBytes>(from(at)) : Chunk<kFromBytes>{};
  }
  float factor = 1;
  if constexpr (kScaled) {
    float amax = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kKept; ++i) amax = larger_magnitude<kPage, kCount>(kept[i], amax);
    for (std::uint32_t at = lane + kKept * kWarp; at < chunks; at += kWarp) {
      amax = larger_magnitude<kPage, kCount>(load_chunk<kFromBytes>(from(at)), amax);
    }
    const float found = scale_for(largest_of_warp(amax), largest_finite(kStored));
    factor = __fdiv_rn(1.0F, found);
    if (lane == 0) *scale = found;
  }
#pragma unroll
  for (std::uint32_t i = 0; i < kKept; ++i) {
    const std::uint32_t at = lane + i * kWarp;
    if (at < chunks) {
      store_chunk<kToBytes>(to + at * kToBytes,
                            converted<kPage, kStored, kCount, kScaled>(kept[i], factor));
    }
  }
  for (std::uint32_t at = lane + kKept * kWarp; at < chunks; at += kWarp) {
    const auto chunk = load_chunk<kFromBytes>(from(at));
    store_chunk<kToBytes>(to + at * kToBytes,
                          converted<kPage, kStored, kCount, kScaled>(chunk, factor));
  }
}

struct PackParams {
  LaunchLayers launch;
  FastDivide piece_heads;  // of K and of V
  std::uint32_t heads_total;
  std::uint64_t scales_offset;  // of the first layer, behind records[i]
};

template <DType kPage, DType kStored, int kCount>
__global__ void __launch_bounds__(kWarpsPerBlock* kWarp)
    pack_kernel(const __grid_constant__ PackParams p) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  const SideShape& k = p.launch.sides[0];
  for (std::uint32_t i = blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarp; i < p.heads_total;
       i += gridDim.x * kWarpsPerBlock) {
    const std::uint32_t piece = p.piece_heads.quotient(i);
    const std::uint32_t side_head = i - piece * p.piece_heads.divisor();
    const std::uint32_t layer = p.launch.blocks.quotient(piece);
    const std::uint32_t block = piece - layer * p.launch.blocks.divisor();
    const std::uint32_t side = side_head >= k.heads ? 1 : 0;
    const std::uint32_t head = side_head - side * k.heads;
    const std::uint32_t chunks = p.launch.sides[side].head_chunks.divisor();
    const std::uint64_t before =
        std::uint64_t{side * k.heads} * k.head_chunks.divisor() + std::uint64_t{head} * chunks;
    auto* record = const_cast<std::byte*>(p.launch.records[block]);
    std::byte* to = record + p.launch.payload + layer * p.launch.layer_bytes +
                    before * kCount * size_of(kStored);
    auto* scale =
        reinterpret_cast<float*>(record + p.scales_offset) + layer * 2 * k.heads + side_head;
    quantise_head<kPage, kStored, kCount>(
        [&](std::uint32_t at) -> const std::byte* {
          return p.launch.page_chunk<kCount * size_of(kPage)>(layer, block, side, head, at);
        },
        to, scale, chunks, lane);
  }
}

template <DType kPage, DType kStored, int kCount>
void launch_pack(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                 StreamView stream) {
  const LayerLayout& first = args.layers[first_layer].layout;
  const std::uint32_t piece_heads = (first.head_dim_v == 0 ? 1U : 2U) * first.kv_heads;
  const auto launch = [&](const LaunchPart& part) {
    const PackParams params{
        .launch = launch_layers(args, part, kCount),
        .piece_heads = FastDivide(piece_heads),
        .heads_total = part.layers * part.blocks * piece_heads,
        .scales_offset = args.layers[part.first_layer].layout.scales_offset - args.records_begin};
    const std::uint32_t needed = divided_up(params.heads_total, kWarpsPerBlock);
    const std::uint32_t most = args.thread_blocks != 0 ? args.thread_blocks : processors() * 8;
    pack_kernel<kPage, kStored, kCount>
        <<<std::min(needed, most), kWarpsPerBlock * kWarp, 0, stream.get()>>>(params);
    check_launch("quantise_and_pack");
  };
  for_each_part(args, first_layer, alike, piece_heads, FastDivide::kLimit / 2, launch);
}

template <DType kPage, DType kStored>
void pack(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
          StreamView stream) {
  constexpr int kCount = 16 / size_of(kPage);
  if (fit(args, first_layer, alike, {kCount, size_of(kPage), size_of(kStored)})) {
    launch_pack<kPage, kStored, kCount>(args, first_layer, alike, stream);
  } else {
    launch_pack<kPage, kStored, 1>(args, first_layer, alike, stream);
  }
}

struct PagesParams {
  SideLayout layout;
  std::uint32_t side_heads;  // of K, and of V where there is one
  std::uint32_t layer;
  const ExactPage* pages;
  const std::uint32_t* completed_pages;
  std::byte* const* completed_records;
};

// Grid: [completed blocks][groups of heads].
template <DType kStored>
__global__ void __launch_bounds__(kWarpsPerBlock* kWarp)
    pages_kernel(const __grid_constant__ PagesParams p) {
  const std::uint32_t side_head = blockIdx.y * kWarpsPerBlock + threadIdx.x / kWarp;
  device::release_dependent_kernel();
  device::wait_for_previous_kernel();
  std::byte* record = p.completed_records[blockIdx.x];
  if (record == nullptr || side_head >= p.side_heads) return;
  const ExactPage page = p.pages[p.completed_pages[blockIdx.x]];
  const std::uint64_t before = std::uint64_t{side_head} * p.layout.k_elements;  // K's dim is V's
  const auto* values =
      reinterpret_cast<const std::byte*>(page.values + p.layer * page.layer_stride + before);
  std::byte* to =
      record + p.layout.header_bytes + p.layer * p.layout.layer_bytes + before * size_of(kStored);
  auto* scale = reinterpret_cast<float*>(record + p.layout.scale_offset(p.layer, side_head));
  quantise_head<DType::bf16, kStored, 8>(
      [&](std::uint32_t at) { return values + std::uint64_t{at} * 16; }, to, scale,
      p.layout.k_elements / 8, threadIdx.x % kWarp);
}

}  // namespace

void quantise_and_pack(const TransferArgs& args, StreamView stream) {
  if (args.blocks == 0) return;
  for_each_alike(args.layers, [&](std::uint32_t first, std::uint32_t alike) {
    const StorageFormat format = args.layers[first].layout.format;
    if (is_integer(format)) return pack_integers(args, first, alike, stream);
    if (!has_scales(format)) return pack_unscaled(args, first, alike, stream);
    with_page_type(args.page_type, [&](auto page) {
      constexpr DType kPage = decltype(page)::kType;
      if (format == StorageFormat::fp8_e4m3) {
        pack<kPage, DType::fp8_e4m3>(args, first, alike, stream);
      } else {
        pack<kPage, DType::fp8_e5m2>(args, first, alike, stream);
      }
    });
  });
}

TransferSide head_major(void* const* pages, const LayerLayout& layout, bool v,
                        DType type) noexcept {
  const std::uint64_t row =
      std::uint64_t{v ? layout.head_dim_v : layout.head_dim_k} * bytes_of(type);
  return {.pages = pages, .token_stride = row, .head_stride = layout.block_tokens * row};
}

void quantise_pages(const RecordLayout& layout, std::uint32_t layer, const ExactPage* pages,
                    const std::uint32_t* completed_pages, std::byte* const* completed_records,
                    std::uint32_t count, StreamView stream) {
  KVTIER_CHECK(layer < layout.layers && layout.block_tokens == kTileTokens);
  KVTIER_CHECK(layout.head_dim_v == 0 || layout.head_dim_k == layout.head_dim_v);
  if (count == 0) return;
  const std::uint32_t side_heads = (layout.head_dim_v == 0 ? 1 : 2) * layout.kv_heads;
  const PagesParams params{.layout = SideLayout(layout),
                           .side_heads = side_heads,
                           .layer = layer,
                           .pages = pages,
                           .completed_pages = completed_pages,
                           .completed_records = completed_records};
  const dim3 grid(count, divided_up(side_heads, kWarpsPerBlock));
  with_stored_type(layout.format, [&](auto stored) {
    device::launch_dependent(pages_kernel<decltype(stored)::kType>,
                             {.grid = grid, .threads = kWarpsPerBlock * kWarp}, stream, params);
  });
}

}  // namespace kvtier::kernels::cuda
