// Where everything lies in a record: one block of tokens with its K and V for every layer, the same
// bytes in every tier (docs/format.md).
//
//   [header page(s): RecordHeader, proof, scales][payload]
//
// The payload is layer-major, [layer][K then V][kv head][token][dim], so one layer of one block is
// one contiguous piece.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvtier/namespace.h"

namespace kvtier {

inline constexpr std::size_t kRecordAlignment = 4096;

struct RecordLayout {
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim_k = 0;
  std::uint32_t head_dim_v = 0;
  std::uint32_t block_tokens = 0;
  StorageFormat format = StorageFormat::fp8_e4m3;

  std::size_t proof_offset = 0;   // Token[block_tokens]
  std::size_t scales_offset = 0;  // float[layers][2][kv_heads]; K is 0, V is 1
  std::size_t header_bytes = 0;   // offset of the payload, a multiple of 4 KiB
  std::size_t k_head_bytes = 0;   // one head's K of one layer: [token][dim]
  std::size_t v_head_bytes = 0;
  std::size_t layer_bytes = 0;    // K and V of one layer
  std::size_t payload_bytes = 0;  // layers * layer_bytes
  std::size_t record_bytes = 0;   // header + payload, rounded up to 4 KiB

  // `ns` has passed validate().
  static RecordLayout of(const Namespace& ns) noexcept;

  std::size_t k_offset(std::size_t layer, std::size_t head) const noexcept {
    return header_bytes + layer * layer_bytes + head * k_head_bytes;
  }
  std::size_t v_offset(std::size_t layer, std::size_t head) const noexcept {
    return header_bytes + layer * layer_bytes + kv_heads * k_head_bytes + head * v_head_bytes;
  }
  std::size_t scale_offset(std::size_t layer, bool v, std::size_t head) const noexcept {
    return scales_offset + (((layer * 2) + (v ? 1 : 0)) * kv_heads + head) * sizeof(float);
  }
};

}  // namespace kvtier
