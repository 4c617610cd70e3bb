// Where the pieces of a transfer lie: a launch is of layers that are alike, of which only the
// places differ. In a record the rows of a head follow one another; in pages they are anywhere by
// strides. A row is one head of one token, or in raw pages a piece of a page.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace kvtier::kernels::cuda {

// The places of a launch's layers are kernel arguments: so many fit well, and no table has to be
// brought to the device for them.
inline constexpr std::uint32_t kLayersPerLaunch = 16;

// K or V of all layers of a launch, counted in chunks. A side that is absent has no heads.
struct SideShape {
  FastDivide row_chunks;
  FastDivide head_chunks;  // of a block
  FastDivide page_rows;
  std::uint32_t pages;  // of a block
  std::uint32_t heads;

  std::uint32_t chunks() const { return heads * head_chunks.divisor(); }
};

struct SidePlace {
  void* const* pages;
  std::byte* base;
  std::uint64_t page_stride;
  std::uint64_t row_stride;
  std::uint64_t head_stride;
};

struct LaunchLayers {
  SideShape sides[2];  // K, V
  FastDivide blocks;
  const std::byte* const* records;
  const std::uint32_t* numbers;
  std::uint64_t payload;  // where the first layer's begins, behind records[i]
  std::uint64_t layer_bytes;
  SidePlace places[kLayersPerLaunch][2];

  // Row `row` of a head of one block, as it lies in its page. `side`: 1 is V.
  __device__ __forceinline__ std::byte* page_row(std::uint32_t layer, std::uint32_t block,
                                                 std::uint32_t side, std::uint32_t head,
                                                 std::uint32_t row) const {
    const SideShape& shape = sides[side];
    const SidePlace& place = places[layer][side];
    const std::uint32_t page = shape.page_rows.quotient(row);
    const std::uint32_t in_page = row - page * shape.page_rows.divisor();
    const std::uint64_t n = std::uint64_t{block} * shape.pages + page;
    std::byte* at = place.pages != nullptr ? static_cast<std::byte*>(place.pages[n])
                                           : place.base + __ldg(numbers + n) * place.page_stride;
    return at + head * place.head_stride + in_page * place.row_stride;
  }

  // Chunk `chunk` of a head of one block, of kBytes, likewise.
  template <int kBytes>
  __device__ __forceinline__ std::byte* page_chunk(std::uint32_t layer, std::uint32_t block,
                                                   std::uint32_t side, std::uint32_t head,
                                                   std::uint32_t chunk) const {
    const std::uint32_t row = sides[side].row_chunks.quotient(chunk);
    const std::uint32_t in_row = chunk - row * sides[side].row_chunks.divisor();
    return page_row(layer, block, side, head, row) + std::uint64_t{in_row} * kBytes;
  }
};

// What a launch does at a time: layers [first, first + layers) of the call's, alike, and blocks.
struct LaunchPart {
  std::uint32_t first_layer, layers;
  std::uint32_t first_block, blocks;
};

// Whether `next` is as `one`, which it follows in the record.
inline bool follows_alike(const TransferLayer& one, const TransferLayer& next) {
  LayerLayout expected = one.layout;
  expected.offset += one.layout.bytes;
  if (has_scales(one.layout.format))
    expected.scales_offset += std::size_t{2} * one.layout.kv_heads * sizeof(float);
  const auto rows_alike = [](const TransferSide& a, const TransferSide& b) {
    return a.rows == b.rows && a.row_bytes == b.row_bytes;
  };
  return next.layout == expected && rows_alike(one.k, next.k) && rows_alike(one.v, next.v);
}

// f(first, count) for layers that are alike and follow one another.
template <typename F>
void for_each_alike(std::span<const TransferLayer> layers, const F& f) {
  for (std::uint32_t first = 0; first < layers.size();) {
    std::uint32_t end = first + 1;
    while (end < layers.size() && follows_alike(layers[end - 1], layers[end])) ++end;
    f(first, end - first);
    first = end;
  }
}

// Calls f(part) for parts of `alike` layers whose pieces (a layer of a block) have `piece_chunks`
// chunks, so that a part's chunks are counted below `chunks_max`.
template <typename F>
void for_each_part(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                   std::uint64_t piece_chunks, std::uint64_t chunks_max, const F& f) {
  const auto blocks_max =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(args.blocks, chunks_max / piece_chunks));
  KVTIER_CHECK(blocks_max > 0);
  const auto layers_max = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(chunks_max / (piece_chunks * blocks_max), 1, kLayersPerLaunch));
  for (std::uint32_t layer = 0; layer < alike; layer += layers_max) {
    for (std::uint32_t block = 0; block < args.blocks; block += blocks_max) {
      f(LaunchPart{first_layer + layer, std::min(alike - layer, layers_max), block,
                   std::min(args.blocks - block, blocks_max)});
    }
  }
}

// K or V of such layers as rows of so many elements (raw: bytes).
struct SideRows {
  std::uint32_t heads, pages, page_rows, row_elements;

  static SideRows of(const TransferArgs& args, const TransferLayer& layer, bool v) {
    const LayerLayout& layout = layer.layout;
    const TransferSide& side = v ? layer.v : layer.k;
    const std::uint32_t pages = layout.block_tokens / args.page_tokens;
    if (layout.format == StorageFormat::raw)
      return {side.rows == 0 ? 0U : 1U, pages, side.rows, side.row_bytes};
    const std::uint32_t dim = v ? layout.head_dim_v : layout.head_dim_k;
    return {dim == 0 ? 0 : layout.kv_heads, pages, args.page_tokens, dim};
  }
  SideShape in_chunks(std::uint32_t elements) const {
    if (heads == 0) return {FastDivide(1), FastDivide(1), FastDivide(1), 0, 0};
    const std::uint32_t row = row_elements / elements;
    return {FastDivide(row), FastDivide(row * page_rows * pages), FastDivide(page_rows), pages,
            heads};
  }
};

inline LaunchLayers launch_layers(const TransferArgs& args, const LaunchPart& part,
                                  std::uint32_t elements_per_chunk) {
  const TransferLayer& first = args.layers[part.first_layer];
  LaunchLayers launch{.sides = {SideRows::of(args, first, false).in_chunks(elements_per_chunk),
                                SideRows::of(args, first, true).in_chunks(elements_per_chunk)},
                      .blocks = FastDivide(part.blocks),
                      .records = args.records + part.first_block,
                      .numbers = nullptr,
                      .payload = first.layout.offset - args.records_begin,
                      .layer_bytes = first.layout.bytes,
                      .places = {}};
  const std::uint64_t pages =
      std::uint64_t{part.first_block} * (first.layout.block_tokens / args.page_tokens);
  if (args.numbers != nullptr) launch.numbers = args.numbers + pages;
  for (std::uint32_t i = 0; i < part.layers; ++i) {
    const TransferLayer& layer = args.layers[part.first_layer + i];
    for (std::uint32_t v = 0; v < 2; ++v) {
      const TransferSide& side = v == 1 ? layer.v : layer.k;
      launch.places[i][v] = {side.pages == nullptr ? nullptr : side.pages + pages, side.base,
                             side.page_stride, side.token_stride, side.head_stride};
    }
  }
  return launch;
}

// A chunk: so many elements, and what one takes in pages and in records.
struct ChunkShape {
  std::uint32_t elements, page_bytes, stored_bytes;
};

// Whether rows of `alike` layers from `first_layer` on are whole chunks, each of which begins at a
// multiple of its size, or of 16 where that is more, in pages and in records.
inline bool fit(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                const ChunkShape& chunk) {
  std::uint64_t in_pages = 0;
  const std::uint64_t in_records = args.layers[first_layer].layout.offset - args.records_begin;
  for (const TransferLayer& layer : args.layers.subspan(first_layer, alike)) {
    for (const bool v : {false, true}) {
      const TransferSide& side = v ? layer.v : layer.k;
      const SideRows rows = SideRows::of(args, layer, v);
      if (rows.heads == 0) continue;
      if (rows.row_elements % chunk.elements != 0) return false;
      in_pages |= side.pages != nullptr
                      ? args.pages_alignment
                      : reinterpret_cast<std::uintptr_t>(side.base) | side.page_stride;
      if (rows.page_rows > 1) in_pages |= side.token_stride;
      if (rows.heads > 1) in_pages |= side.head_stride;
    }
  }
  return in_pages % std::min(16U, chunk.elements * chunk.page_bytes) == 0 &&
         in_records % std::min(16U, chunk.elements * chunk.stored_bytes) == 0;
}

inline bool is_integer(StorageFormat format) {
  return format == StorageFormat::int8 || format == StorageFormat::int4;
}

// Integers in groups, both ways.
void unpack_integers(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                     StreamView stream);
void pack_integers(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                   StreamView stream);
// Pages -> payload of raw, bf16 and f32 layers: what gather_and_dequantise() does, backwards.
void pack_unscaled(const TransferArgs& args, std::uint32_t first_layer, std::uint32_t alike,
                   StreamView stream);

}  // namespace kvtier::kernels::cuda
