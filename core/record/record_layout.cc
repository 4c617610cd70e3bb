#include "kvtier/record_layout.h"

#include "core/base/check.h"
#include "core/base/units.h"
#include "core/record/record.h"
#include "kvtier/groups.h"

namespace kvtier {
namespace {

LayerLayout layer_of(const LayerShape& shape, std::uint32_t block_tokens) noexcept {
  LayerLayout layer;
  layer.kv_heads = shape.kv_heads;
  layer.head_dim_k = shape.head_dim_k;
  layer.head_dim_v = shape.head_dim_v;
  layer.block_tokens = block_tokens;
  layer.format = shape.format;
  if (shape.format == StorageFormat::raw) {
    layer.bytes = shape.raw_bytes;
    return layer;
  }
  layer.k_head_bytes = head_bytes(shape.format, block_tokens, shape.head_dim_k, false);
  layer.v_head_bytes = head_bytes(shape.format, block_tokens, shape.head_dim_v, true);
  layer.bytes = shape.kv_heads * (layer.k_head_bytes + layer.v_head_bytes);
  return layer;
}

std::size_t scale_bytes(const LayerShape& shape) noexcept {
  return has_scales(shape.format) ? std::size_t{2} * shape.kv_heads * sizeof(float) : 0;
}

std::size_t first_scale(const Namespace& ns) noexcept {
  return round_up(sizeof(RecordHeader) + proof_bytes(ns) + ns.extra_bytes_max, 64);
}

}  // namespace

std::size_t head_bytes(StorageFormat format, std::uint32_t block_tokens, std::uint32_t dim,
                       bool v) noexcept {
  if (has_elements(format)) return std::size_t{block_tokens} * dim * bytes_per_element(format);
  return grouped_head(format, block_tokens, dim, v).bytes;
}

std::vector<LayerLayout> layer_layouts(const Namespace& ns) {
  std::vector<LayerLayout> layers;
  layers.reserve(ns.layers);
  std::size_t scales = first_scale(ns);
  std::size_t payload = 0;
  for (std::uint32_t i = 0; i < ns.layers; ++i) {
    const LayerShape shape = layer_shape(ns, i);
    LayerLayout layer = layer_of(shape, ns.block_tokens);
    layer.offset = payload;
    layer.scales_offset = scales;
    payload += layer.bytes;
    scales += scale_bytes(shape);
    layers.push_back(layer);
  }
  const std::size_t header = round_up(scales, kRecordAlignment);
  for (LayerLayout& layer : layers) layer.offset += header;
  return layers;
}

RecordLayout RecordLayout::of(const Namespace& ns) {
  const auto layers = layer_layouts(ns);
  const LayerLayout& first = layers.front();
  RecordLayout layout;
  layout.layers = ns.layers;
  layout.kv_heads = first.kv_heads;
  layout.head_dim_k = first.head_dim_k;
  layout.head_dim_v = first.head_dim_v;
  layout.block_tokens = ns.block_tokens;
  layout.format = first.format;
  layout.uniform = ns.layer_shapes.empty();
  layout.digest_bytes = ns.digest_bytes;
  layout.extra_bytes_max = ns.extra_bytes_max;

  layout.proof_offset = sizeof(RecordHeader);
  layout.scales_offset = first_scale(ns);
  layout.header_bytes = first.offset;
  layout.k_head_bytes = first.k_head_bytes;
  layout.v_head_bytes = first.v_head_bytes;
  layout.layer_bytes = first.bytes;
  layout.payload_bytes = layers.back().offset + layers.back().bytes - first.offset;
  layout.record_bytes = round_up(layout.header_bytes + layout.payload_bytes, kRecordAlignment);
  return layout;
}

}  // namespace kvtier
