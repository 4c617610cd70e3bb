// Where everything lies in a record: one block of tokens with its K and V for every layer, the same
// bytes in every tier (docs/format.md).
//
//   [header page(s): RecordHeader, proof, scales][payload]
//
// The payload is layer-major, [layer][K then V][kv head][token][dim], so one layer of one block is
// one contiguous piece. In int8 and int4 a head is its integers and behind them its groups' scales
// (kvtier/groups.h); in raw a layer is what the engine's pages have, piece after piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvtier/namespace.h"

namespace kvtier {

inline constexpr std::size_t kRecordAlignment = 4096;

// Where one layer lies in a record.
struct LayerLayout {
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim_k = 0;
  std::uint32_t head_dim_v = 0;  // 0: no V
  std::uint32_t block_tokens = 0;
  StorageFormat format = StorageFormat::fp8_e4m3;

  std::size_t offset = 0;         // of its payload in the record
  std::size_t bytes = 0;          // of its payload: K, then V
  std::size_t scales_offset = 0;  // has_scales(): float[2][kv_heads]; K is 0, V is 1
  std::size_t k_head_bytes = 0;   // one head's K; 0 in raw
  std::size_t v_head_bytes = 0;

  std::size_t k_offset(std::size_t head) const noexcept { return offset + head * k_head_bytes; }
  std::size_t v_offset(std::size_t head) const noexcept {
    return offset + kv_heads * k_head_bytes + head * v_head_bytes;
  }
  std::size_t scale_offset(bool v, std::size_t head) const noexcept {
    return scales_offset + ((v ? kv_heads : 0) + head) * sizeof(float);
  }

  friend bool operator==(const LayerLayout&, const LayerLayout&) = default;
};

// Bytes of one head's K or V of a block, `dim` numbers a token, in a format other than raw.
std::size_t head_bytes(StorageFormat format, std::uint32_t block_tokens, std::uint32_t dim,
                       bool v) noexcept;

// The layers of a record, first to last. `ns` has passed validate().
std::vector<LayerLayout> layer_layouts(const Namespace& ns);

// A record as a whole. What it says of layers is of all of them where they are alike, and of the
// first where they are not: then layer_layouts() has the others, and k_offset() and its like are
// not to be asked.
struct RecordLayout {
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim_k = 0;
  std::uint32_t head_dim_v = 0;
  std::uint32_t block_tokens = 0;
  StorageFormat format = StorageFormat::fp8_e4m3;
  bool uniform = true;                // all layers are alike
  std::uint32_t digest_bytes = 0;     // as in the namespace
  std::uint32_t extra_bytes_max = 0;  // likewise

  std::size_t proof_offset = 0;   // tokens or digests, then extra bytes
  std::size_t scales_offset = 0;  // float[layers][2][kv_heads]; K is 0, V is 1
  std::size_t header_bytes = 0;   // offset of the payload, a multiple of 4 KiB
  std::size_t k_head_bytes = 0;   // one head's K of one layer: [token][dim]
  std::size_t v_head_bytes = 0;
  std::size_t layer_bytes = 0;    // K and V of one layer
  std::size_t payload_bytes = 0;  // all layers
  std::size_t record_bytes = 0;   // header + payload, rounded up to 4 KiB

  // `ns` has passed validate().
  static RecordLayout of(const Namespace& ns);

  // Of a record whose layers are alike.
  LayerLayout layer(std::size_t index) const noexcept {
    return {kv_heads,     head_dim_k,         head_dim_v,  block_tokens,
            format,       k_offset(index, 0), layer_bytes, scale_offset(index, false, 0),
            k_head_bytes, v_head_bytes};
  }

  // Of the part of a proof that every block has: its tokens, or its digest and its parent's.
  std::size_t proof_bytes() const noexcept {
    return digest_bytes != 0 ? std::size_t{2} * digest_bytes : block_tokens * sizeof(Token);
  }

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
