#include "client/cuda/cuda_pages.h"

#include <cstring>

#include "core/base/units.h"

namespace kvtier::transfer {

using kernels::cuda::TransferLayer;
using kernels::cuda::TransferSide;

namespace {

TransferSide side_of(const PoolSide& side, bool raw) {
  return {.base = side.base,
          .page_stride = side.page_stride,
          .token_stride = raw ? side.row_stride : side.token_stride,
          .head_stride = side.head_stride,
          .rows = side.base == nullptr ? 0 : side.rows,
          .row_bytes = static_cast<std::uint32_t>(side.row_bytes)};
}

}  // namespace

ByteRange bytes_of(const LayerRange& layers, const session::NamespaceEntry& ns) noexcept {
  const ByteRange payload = payload_of(layers, ns);
  return {layers.first == 0 ? 0 : payload.begin,
          layers.end == ns.layout.layers ? ns.layout.record_bytes : payload.end};
}

ByteRange payload_of(const LayerRange& layers, const session::NamespaceEntry& ns) noexcept {
  const LayerLayout& last = ns.layers[layers.end - 1];
  return {ns.layers[layers.first].offset, last.offset + last.bytes};
}

ByteRange scales_of(const session::NamespaceEntry& ns) noexcept {
  const std::size_t begin = ns.layout.scales_offset;
  std::size_t end = begin;
  for (const LayerLayout& layer : ns.layers) {
    if (has_scales(layer.format)) end += std::size_t{2} * layer.kv_heads * sizeof(float);
  }
  return {begin, end};
}

std::size_t CudaPages::table_bytes(std::size_t blocks) const noexcept {
  if (pages_.of_pool())
    return round_up(blocks * pages_.pages_of_block() * sizeof(std::uint32_t), sizeof(void*));
  return 2 * std::size_t{ns_.layout.layers} * blocks * sizeof(void*);
}

void CudaPages::write_table(std::span<const std::uint32_t> blocks, std::byte* to) const noexcept {
  if (pages_.of_pool()) {
    for (const std::uint32_t block : blocks) {
      const auto numbers = pages_.numbers(block);
      std::memcpy(to, numbers.data(), numbers.size_bytes());
      to += numbers.size_bytes();
    }
    return;
  }
  auto** k = reinterpret_cast<void**>(to);
  auto** v = k + ns_.layout.layers * blocks.size();
  for (std::uint32_t layer = 0; layer < ns_.layout.layers; ++layer) {
    for (const std::uint32_t block : blocks) {
      *k++ = pages_.k(layer, block);
      *v++ = pages_.v(layer, block);
    }
  }
}

std::vector<TransferLayer> CudaPages::places(const LayerRange& layers, std::size_t blocks,
                                             const std::byte* table) const {
  std::vector<TransferLayer> places;
  places.reserve(layers.end - layers.first);
  auto* const* k = reinterpret_cast<void* const*>(table);
  auto* const* v = k + ns_.layout.layers * blocks;
  for (std::uint32_t i = layers.first; i < layers.end; ++i) {
    const LayerLayout& layout = ns_.layers[i];
    if (pages_.of_pool()) {
      const bool raw = layout.format == StorageFormat::raw;
      const PoolLayer& layer = pages_.pool_layer(i);
      places.push_back({layout, side_of(layer.k, raw), side_of(layer.v, raw)});
    } else {
      places.push_back({layout,
                        kernels::cuda::head_major(k + i * blocks, layout, false, pages_.type()),
                        kernels::cuda::head_major(v + i * blocks, layout, true, pages_.type())});
    }
  }
  return places;
}

}  // namespace kvtier::transfer
