// The namespace: everything that must be equal for the KV of two engines to be interchangeable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvtier/key.h"
#include "kvtier/result.h"

namespace kvtier {

// How K and V are stored. The lossless one for an engine is the one as wide as its arithmetic, or
// raw.
enum class StorageFormat : std::uint8_t {
  fp8_e4m3 = 1,  // OCP FP8 E4M3 with one scale a block, layer, K or V, and head (amax / 448)
  fp8_e5m2 = 2,  // OCP FP8 E5M2, likewise (amax / 57344)
  bf16 = 3,
  f32 = 4,
  raw = 5,   // the bytes of the engine's pages, bit for bit, whatever they mean to it
  int8 = 6,  // signed integers in groups of 32 with a scale each (docs/format.md)
  int4 = 7,  // likewise, two to a byte
};

const char* name(StorageFormat format) noexcept;
// Errors: invalid, naming the choices.
Result<StorageFormat> parse_storage_format(const std::string& text);
// Whether the header has a scale for each layer, K or V, and head: FP8, int8 and int4.
bool has_scales(StorageFormat format) noexcept;
// Whether elements stand alone, at one size each: FP8, bf16 and f32. Those of int8 and int4 come in
// groups, and raw has none.
bool has_elements(StorageFormat format) noexcept;
// Of a format that has_elements().
std::uint32_t bytes_per_element(StorageFormat format) noexcept;

// What one layer keeps of one block.
struct LayerShape {
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim_k = 0;
  std::uint32_t head_dim_v = 0;  // 0: K alone, as latent attention has it
  StorageFormat format = StorageFormat::fp8_e4m3;
  std::uint32_t raw_bytes = 0;  // format raw: bytes of a block; the other formats: 0

  friend bool operator==(const LayerShape&, const LayerShape&) = default;
};

struct Namespace {
  std::string model;           // name and weights revision, e.g. "docs-4m@<digest of the weights>"
  std::string adapter;         // LoRA name and version; empty for none
  std::string tenant;          // tenant salt; empty for none
  std::uint32_t layers = 0;    // layers held by this rank
  std::uint32_t kv_heads = 0;  // KV heads held by this rank
  std::uint32_t head_dim_k = 0;
  std::uint32_t head_dim_v = 0;  // 0: K alone, as latent attention has it
  std::uint32_t block_tokens = 16;
  StorageFormat format = StorageFormat::fp8_e4m3;
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;  // 0: every rank holds the same KV ("replicated")
  std::string positions;    // position scheme, e.g. "rope theta=500000 scaling=llama3:8:1:4:8192"

  // Format raw: bytes of one block in one layer. kv_heads and the head sizes may then be 0.
  std::uint32_t raw_bytes = 0;
  // What the bytes of raw pages mean: engine, element type, order, static scales, instruction set,
  // whatever must be equal for them to be of use.
  std::string page_layout;
  // The most extra bytes that a block's key and proof cover besides its tokens (Prefix::cover()).
  std::uint32_t extra_bytes_max = 0;
  // 0: blocks are named by their tokens. Else by the engine's own digests of so many bytes, chosen
  // so that different blocks never have the same: the digest and its parent's are then the proof.
  std::uint32_t digest_bytes = 0;
  // Where layers differ: one for each. kv_heads, the head sizes, format and raw_bytes are then the
  // first layer's. Empty: all are alike.
  std::vector<LayerShape> layer_shapes;

  friend bool operator==(const Namespace&, const Namespace&) = default;

  // Errors: invalid, naming the field, its value and its range (kNamespaceLimits).
  Result<void> validate() const;
};

// Bounds that keep every record and every message inside its own bound.
struct NamespaceLimits {
  std::uint32_t layers_max = 1024;
  std::uint32_t kv_heads_max = 1024;
  std::uint32_t head_dim_max = 4096;
  std::uint32_t block_tokens_max = 1024;
  std::uint32_t ranks_max = 4096;
  std::uint32_t text_bytes_max = 1024;
  std::uint32_t extra_bytes_max = 16384;
  std::uint32_t digest_bytes_min = 16;
  std::uint32_t digest_bytes_max = 64;
  std::uint64_t record_bytes_max = 256ULL << 20;
};
inline constexpr NamespaceLimits kNamespaceLimits{};

// What layer `layer` keeps of a block.
LayerShape layer_shape(const Namespace& ns, std::uint32_t layer) noexcept;
// Bytes of the part of a proof that every block has: its tokens, or its digest and its parent's.
std::uint32_t proof_bytes(const Namespace& ns) noexcept;

// The canonical tagged encoding (docs/format.md): each field once, in tag order, as
// [tag u8][length u32][bytes], so that no two namespaces encode alike. The fields behind
// `positions` are left out where they are 0 or empty.
std::vector<std::byte> encode(const Namespace& ns);
// Errors: malformed (not the canonical form), invalid (a field out of range).
Result<Namespace> decode_namespace(std::span<const std::byte> bytes);
// XXH3-128 of encode(ns).
NamespaceId id_of(const Namespace& ns);

// key = XXH3-128(namespace id, parent key, `count`, proof), but for its first 35 bits: 7
// consecutive blocks of a prefix (kKeyGroup) have the first 32 in common, those of the first of
// them, so that tables by key find what is used together in one place; the next 3, the lowest of
// byte 4, are the block's place among the 7. `count` is the number of tokens of a block, or of the
// bytes of a digest; the proof is at most kProofBytesMax long.
Key chain_key(const NamespaceId& ns, const Key& parent, std::uint32_t count,
              std::span<const std::byte> proof) noexcept;
// Of a block with no more to it than its tokens. `tokens` is one whole block.
Key chain_key(const NamespaceId& ns, const Key& parent, std::span<const Token> tokens) noexcept;
inline constexpr std::size_t kProofBytesMax =
    std::size_t{kNamespaceLimits.block_tokens_max} * sizeof(Token) +
    kNamespaceLimits.extra_bytes_max;

// The keys of all whole blocks of `tokens`, in order; the parent of the first is the zero key.
std::vector<Key> chain_keys(const NamespaceId& ns, std::uint32_t block_tokens,
                            std::span<const Token> tokens);

// How many leading blocks of a prompt may come from a cache: never the block that holds the last
// token, whose logits must be computed. 0 for an empty prompt.
constexpr std::size_t blocks_matchable(std::size_t tokens, std::uint32_t block_tokens) noexcept {
  return tokens == 0 ? 0 : (tokens - 1) / block_tokens;
}

}  // namespace kvtier
