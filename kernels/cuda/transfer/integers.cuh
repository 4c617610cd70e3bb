// What both ways between pages and records of integers in groups (docs/format.md) share. Both go in
// chunks of 8 channels of one token; two channels that follow one another always share a scale.
#pragma once

#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/transfer/transfer.cuh"
#include "kvtier/groups.h"

namespace kvtier::kernels::cuda {

constexpr std::uint32_t kChannels = 8;  // of a chunk
constexpr int kPairs = 4;

// One head of K or V in a record; sizes in bytes but for the shifts, which are of numbers.
struct HeadShape {
  std::uint32_t dim;
  std::uint32_t tokens;
  std::uint32_t token_shift, channel_shift;  // of a group
  std::uint32_t token_groups, channel_groups;
  std::uint32_t row_bytes;
  std::uint64_t scales_offset;
  std::uint64_t bytes;

  static HeadShape of(const LayerLayout& layout, bool v) {
    const std::uint32_t dim = v ? layout.head_dim_v : layout.head_dim_k;
    const GroupedHead head = grouped_head(layout.format, layout.block_tokens, dim, v);
    return {dim,
            layout.block_tokens,
            static_cast<std::uint32_t>(std::countr_zero(head.group_tokens)),
            static_cast<std::uint32_t>(std::countr_zero(head.group_channels)),
            head.token_groups,
            head.channel_groups,
            static_cast<std::uint32_t>(head.row_bytes),
            head.scales_offset,
            head.bytes};
  }
};

struct IntegerParams {
  LaunchLayers launch;
  HeadShape heads[2];      // K, V
  FastDivide pieces;       // heads of K and V, or chunks, of a layer of a block
  std::uint32_t k_chunks;  // of those
  std::uint32_t total;
  std::uint64_t scales_offset;  // as in TransferParams
  const float* scales;
  std::uint32_t scales_pitch;

  __device__ __forceinline__ std::byte* head_at(std::uint32_t layer, std::uint32_t block,
                                                std::uint32_t side, std::uint32_t head) const {
    const std::uint64_t before = side * launch.sides[0].heads * heads[0].bytes;
    return const_cast<std::byte*>(launch.records[block]) + launch.payload +
           layer * launch.layer_bytes + before + head * heads[side].bytes;
  }
  __device__ __forceinline__ const float* scale_at(std::uint32_t layer, std::uint32_t block,
                                                   std::uint32_t side, std::uint32_t head) const {
    const std::uint32_t count = launch.sides[0].heads;
    const auto* inside = reinterpret_cast<const float*>(launch.records[block] + scales_offset);
    return (scales == nullptr ? inside : scales + std::uint64_t{block} * scales_pitch) +
           (layer * 2 * count + side * count + head);
  }
};

template <int kBits>
__host__ __device__ constexpr float levels() {
  return kBits == 4 ? 8.0F : 128.0F;
}

// Up to 8 elements of a page; those from `count` on are 0. kWhole: there are 8, and they begin at a
// multiple of 16 bytes or of their size together.
template <DType kPage, bool kWhole>
__device__ __forceinline__ Decoded<kPage, 8> load_channels(const std::byte* at,
                                                           std::uint32_t count) {
  Chunk<8 * size_of(kPage)> chunk{};
  if constexpr (kWhole) {
    chunk = load_chunk<8 * size_of(kPage)>(at);
  } else if constexpr (size_of(kPage) == 4) {
#pragma unroll
    for (std::uint32_t i = 0; i < kChannels; ++i) {
      if (i < count) chunk.words[i] = reinterpret_cast<const std::uint32_t*>(at)[i];
    }
  } else {
#pragma unroll
    for (std::uint32_t i = 0; i < kChannels; ++i) {
      if (i < count)
        chunk.words[i / 2] |= std::uint32_t{reinterpret_cast<const std::uint16_t*>(at)[i]}
                              << (16 * (i % 2));
    }
  }
  return Decoded<kPage, 8>(chunk);
}

__device__ __forceinline__ float e4m3_value(std::uint8_t code) {
  const __half_raw half = __nv_cvt_fp8_to_halfraw(code, __NV_E4M3);
  return __half2float(half);
}

// --- Launches ------------------------------------------------------------------------------------

inline SideShape in_chunks_of_channels(const SideRows& rows) {
  if (rows.heads == 0) return rows.in_chunks(1);
  const std::uint32_t row = divided_up(rows.row_elements, kChannels);
  return {FastDivide(row), FastDivide(row * rows.page_rows * rows.pages),
          FastDivide(rows.page_rows), rows.pages, rows.heads};
}

// What a launch counts by: its heads, or its chunks.
enum class Pieces { heads, chunks };

// launch(params) for parts of `alike` layers from `first_layer` on.
template <typename F>
void for_each_integer_part(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                           Pieces by, const F& launch) {
  const TransferLayer& first = args.layers[first_layer];
  const SideShape k = in_chunks_of_channels(SideRows::of(args, first, false));
  const SideShape v = in_chunks_of_channels(SideRows::of(args, first, true));
  const std::uint32_t pieces = by == Pieces::heads ? k.heads + v.heads : k.chunks() + v.chunks();
  const auto launch_part = [&](const LaunchPart& part) {
    const LayerLayout& layout = args.layers[part.first_layer].layout;
    const std::size_t scales_before = layout.scales_offset - args.layers[0].layout.scales_offset;
    IntegerParams params{.launch = launch_layers(args, part, 1),
                         .heads = {HeadShape::of(layout, false), HeadShape::of(layout, true)},
                         .pieces = FastDivide(pieces),
                         .k_chunks = k.chunks(),
                         .total = part.layers * part.blocks * pieces,
                         .scales_offset = layout.scales_offset - args.records_begin,
                         .scales = args.scales == nullptr
                                       ? nullptr
                                       : args.scales + scales_before / sizeof(float) +
                                             std::size_t{part.first_block} * args.scales_pitch,
                         .scales_pitch = args.scales_pitch};
    params.launch.sides[0] = k;
    params.launch.sides[1] = v;
    launch(params);
    check_launch("a transfer of integers in groups");
  };
  for_each_part(args, first_layer, alike, pieces, FastDivide::kLimit / 2, launch_part);
}

// Thread blocks of a launch: so many as `work` needs, at most args.thread_blocks, or `each` of a
// multiprocessor.
inline std::uint32_t grid_of(const TransferArgs& args, std::uint32_t work, std::uint32_t each) {
  return std::min(work, args.thread_blocks != 0 ? args.thread_blocks : processors() * each);
}

// f(page, bits, whole): types that hold the pages' element type, bits of a stored integer and
// whether chunks are whole and aligned.
template <typename F>
void with_integer_types(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                        const F& f) {
  const StorageFormat format = args.layers[first_layer].layout.format;
  KVTIER_CHECK(format == StorageFormat::int8 || format == StorageFormat::int4);
  with_page_type(args.page_type, [&](auto page) {
    constexpr DType kPage = decltype(page)::kType;
    const auto with_bits = [&](auto bits) {
      if (fit(args, first_layer, alike, {kChannels, size_of(kPage), 2})) {
        f(page, bits, std::true_type{});
      } else {
        f(page, bits, std::false_type{});
      }
    };
    if (format == StorageFormat::int8) {
      with_bits(std::integral_constant<int, 8>{});
    } else {
      with_bits(std::integral_constant<int, 4>{});
    }
  });
}

}  // namespace kvtier::kernels::cuda
