// Exact pages into records: a warp to a head of K or V, which it reads once, keeping it in
// registers between the largest magnitude and the conversion.
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

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

__device__ __forceinline__ float largest_of_warp(float magnitude) {
  // Magnitudes are ordered as their bits are.
  return __uint_as_float(__reduce_max_sync(0xFFFFFFFF, __float_as_uint(magnitude)));
}

// One head: `chunks` chunks of kCount elements. Called by a whole warp.
template <DType kPage, DType kStored, int kCount>
__device__ __forceinline__ void quantise_head(const std::byte* from, std::byte* to, float* scale,
                                              std::uint32_t chunks, std::uint32_t lane) {
  constexpr int kFromBytes = kCount * size_of(kPage);
  constexpr int kToBytes = kCount * size_of(kStored);
  constexpr bool kScaled = is_fp8(kStored);
  Chunk<kFromBytes> kept[kKept];
#pragma unroll
  for (std::uint32_t i = 0; i < kKept; ++i) {
    const std::uint32_t at = lane + i * kWarp;
    kept[i] = at < chunks ? load_chunk<kFromBytes>(from + at * kFromBytes) : Chunk<kFromBytes>{};
  }
  float factor = 1;
  if constexpr (kScaled) {
    float amax = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kKept; ++i) amax = larger_magnitude<kPage, kCount>(kept[i], amax);
    for (std::uint32_t at = lane + kKept * kWarp; at < chunks; at += kWarp) {
      amax = larger_magnitude<kPage, kCount>(load_chunk<kFromBytes>(from + at * kFromBytes), amax);
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
    const auto chunk = load_chunk<kFromBytes>(from + at * kFromBytes);
    store_chunk<kToBytes>(to + at * kToBytes,
                          converted<kPage, kStored, kCount, kScaled>(chunk, factor));
  }
}

// The `side_head`-th head of [K then V][head] of layer `layer`, from its page into `record`.
template <DType kPage, DType kStored, int kCount>
__device__ __forceinline__ void quantise_side_head(const SideLayout& layout, std::uint32_t layer,
                                                   std::uint32_t side_head,
                                                   const std::byte* head_values, std::byte* record,
                                                   std::uint32_t lane) {
  const bool v = side_head >= layout.kv_heads;
  const std::uint32_t head = v ? side_head - layout.kv_heads : side_head;
  const std::uint32_t elements = v ? layout.v_elements : layout.k_elements;
  const std::uint64_t before = v ? std::uint64_t{layout.kv_heads} * layout.k_elements : 0;
  std::byte* to = record + layout.header_bytes + layer * layout.layer_bytes +
                  (before + std::uint64_t{head} * elements) * size_of(kStored);
  auto* scale = reinterpret_cast<float*>(record + layout.scale_offset(layer, side_head));
  quantise_head<kPage, kStored, kCount>(head_values, to, scale, elements / kCount, lane);
}

struct PackParams {
  SideLayout layout;
  FastDivide side_heads;  // 2 * kv_heads
  FastDivide blocks;
  std::uint32_t first_layer;
  std::uint32_t heads_total;
  const std::byte* const* records;
  void* const* k_pages;
  void* const* v_pages;
};

template <DType kPage, DType kStored, int kCount>
__global__ void __launch_bounds__(kWarpsPerBlock* kWarp)
    pack_kernel(const __grid_constant__ PackParams p) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  for (std::uint32_t i = blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarp; i < p.heads_total;
       i += gridDim.x * kWarpsPerBlock) {
    const std::uint32_t piece = p.side_heads.quotient(i);
    const std::uint32_t side_head = i - piece * p.side_heads.divisor();
    const std::uint32_t layer = p.blocks.quotient(piece);
    const std::uint32_t block = piece - layer * p.blocks.divisor();
    const bool v = side_head >= p.layout.kv_heads;
    const std::uint64_t before =
        v ? std::uint64_t{side_head - p.layout.kv_heads} * p.layout.v_elements
          : std::uint64_t{side_head} * p.layout.k_elements;
    const auto* page = static_cast<const std::byte*>((v ? p.v_pages : p.k_pages)[piece]);
    quantise_side_head<kPage, kStored, kCount>(p.layout, p.first_layer + layer, side_head,
                                               page + before * size_of(kPage),
                                               const_cast<std::byte*>(p.records[block]), lane);
  }
}

template <DType kPage, DType kStored, int kCount>
void launch_pack(const TransferArgs& args, StreamView stream) {
  const std::uint32_t side_heads = 2 * args.layout.kv_heads;
  // Layers of one launch: its heads are counted below 2^31.
  const auto layers_max = static_cast<std::uint32_t>((FastDivide::kLimit - 1) /
                                                     (std::uint64_t{args.blocks} * side_heads));
  KVTIER_CHECK(layers_max > 0);
  for (std::uint32_t done = 0; done < args.layers; done += layers_max) {
    const std::uint32_t layers = std::min(args.layers - done, layers_max);
    const std::uint64_t first_piece = std::uint64_t{done} * args.blocks;
    const PackParams params{.layout = SideLayout(args.layout),
                            .side_heads = FastDivide(side_heads),
                            .blocks = FastDivide(args.blocks),
                            .first_layer = args.first_layer + done,
                            .heads_total = layers * args.blocks * side_heads,
                            .records = args.records,
                            .k_pages = args.k_pages + first_piece,
                            .v_pages = args.v_pages + first_piece};
    const std::uint32_t needed = divided_up(params.heads_total, kWarpsPerBlock);
    const std::uint32_t most = args.thread_blocks != 0 ? args.thread_blocks : processors() * 8;
    pack_kernel<kPage, kStored, kCount>
        <<<std::min(needed, most), kWarpsPerBlock * kWarp, 0, stream.get()>>>(params);
    check_launch("quantise_and_pack");
  }
}

struct PagesParams {
  SideLayout layout;
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
  std::byte* record = p.completed_records[blockIdx.x];
  if (record == nullptr || side_head >= 2 * p.layout.kv_heads) return;
  const ExactPage page = p.pages[p.completed_pages[blockIdx.x]];
  const Bf16* values = page.values + p.layer * page.layer_stride +
                       std::uint64_t{side_head} * p.layout.k_elements;  // K's dim is V's
  quantise_side_head<DType::bf16, kStored, 8>(p.layout, p.layer, side_head,
                                              reinterpret_cast<const std::byte*>(values), record,
                                              threadIdx.x % kWarp);
}

}  // namespace

void quantise_and_pack(const TransferArgs& args, StreamView stream) {
  KVTIER_CHECK(args.first_layer + args.layers <= args.layout.layers);
  if (args.blocks == 0 || args.layers == 0) return;
  with_page_type(args.page_type, [&](auto page) {
    with_stored_type(args.layout.format, [&](auto stored) {
      constexpr DType kPage = decltype(page)::kType;
      constexpr DType kStored = decltype(stored)::kType;
      constexpr int kCount = 16 / size_of(kPage);
      if (SideLayout(args.layout).divides(kCount)) {
        launch_pack<kPage, kStored, kCount>(args, stream);
      } else {
        launch_pack<kPage, kStored, 1>(args, stream);
      }
    });
  });
}

void quantise_pages(const RecordLayout& layout, std::uint32_t layer, const ExactPage* pages,
                    const std::uint32_t* completed_pages, std::byte* const* completed_records,
                    std::uint32_t count, StreamView stream) {
  KVTIER_CHECK(layer < layout.layers && layout.block_tokens == kTileTokens);
  KVTIER_CHECK(layout.head_dim_k == layout.head_dim_v);
  if (count == 0) return;
  const PagesParams params{.layout = SideLayout(layout),
                           .layer = layer,
                           .pages = pages,
                           .completed_pages = completed_pages,
                           .completed_records = completed_records};
  const dim3 grid(count, divided_up(2 * layout.kv_heads, kWarpsPerBlock));
  with_stored_type(layout.format, [&](auto stored) {
    pages_kernel<decltype(stored)::kType>
        <<<grid, kWarpsPerBlock * kWarp, 0, stream.get()>>>(params);
  });
  check_launch("quantise_pages");
}

}  // namespace kvtier::kernels::cuda
