#include "kvtier/record_layout.h"

#include "core/base/units.h"
#include "core/record/record.h"

namespace kvtier {

RecordLayout RecordLayout::of(const Namespace& ns) noexcept {
  RecordLayout layout;
  layout.layers = ns.layers;
  layout.kv_heads = ns.kv_heads;
  layout.head_dim_k = ns.head_dim_k;
  layout.head_dim_v = ns.head_dim_v;
  layout.block_tokens = ns.block_tokens;
  layout.format = ns.format;

  const std::size_t element = bytes_per_element(ns.format);
  const std::size_t scales =
      has_scales(ns.format) ? std::size_t{ns.layers} * 2 * ns.kv_heads * sizeof(float) : 0;
  layout.proof_offset = sizeof(RecordHeader);
  layout.scales_offset =
      round_up(layout.proof_offset + std::size_t{ns.block_tokens} * sizeof(Token), 64);
  layout.header_bytes = round_up(layout.scales_offset + scales, kRecordAlignment);
  layout.k_head_bytes = std::size_t{ns.block_tokens} * ns.head_dim_k * element;
  layout.v_head_bytes = std::size_t{ns.block_tokens} * ns.head_dim_v * element;
  layout.layer_bytes = ns.kv_heads * (layout.k_head_bytes + layout.v_head_bytes);
  layout.payload_bytes = ns.layers * layout.layer_bytes;
  layout.record_bytes = round_up(layout.header_bytes + layout.payload_bytes, kRecordAlignment);
  return layout;
}

}  // namespace kvtier
