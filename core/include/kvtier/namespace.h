// The namespace: everything that must be equal for the KV of two engines to be interchangeable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvtier/key.h"
#include "kvtier/result.h"

namespace kvtier {

// How K and V are stored. The lossless one for an engine is the one as wide as its arithmetic.
enum class StorageFormat : std::uint8_t {
  fp8_e4m3 = 1,  // OCP FP8 E4M3 with one scale a block, layer, K or V, and head (amax / 448)
  fp8_e5m2 = 2,  // OCP FP8 E5M2, likewise (amax / 57344)
  bf16 = 3,
  f32 = 4,
};

const char* name(StorageFormat format) noexcept;
// Errors: invalid, naming the choices.
Result<StorageFormat> parse_storage_format(const std::string& text);
std::uint32_t bytes_per_element(StorageFormat format) noexcept;
bool has_scales(StorageFormat format) noexcept;

struct Namespace {
  std::string model;           // name and weights revision, e.g. "docs-4m@<digest of the weights>"
  std::string adapter;         // LoRA name and version; empty for none
  std::string tenant;          // tenant salt; empty for none
  std::uint32_t layers = 0;    // layers held by this rank
  std::uint32_t kv_heads = 0;  // KV heads held by this rank
  std::uint32_t head_dim_k = 0;
  std::uint32_t head_dim_v = 0;
  std::uint32_t block_tokens = 16;
  StorageFormat format = StorageFormat::fp8_e4m3;
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;  // 0: every rank holds the same KV ("replicated")
  std::string positions;    // position scheme, e.g. "rope theta=500000 scaling=llama3:8:1:4:8192"

  friend bool operator==(const Namespace&, const Namespace&) = default;

  // Errors: invalid, naming the field, its value and its range (kNamespaceLimits).
  Result<void> validate() const;
};

// Bounds that keep every record and every message inside its own bound.
struct NamespaceLimits {
  std::uint32_t layers_max = 1024;
  std::uint32_t kv_heads_max = 1024;
  std::uint32_t head_dim_max = 4096;
  std::uint32_t block_tokens_max = 1024;  // and a power of two
  std::uint32_t ranks_max = 4096;
  std::uint32_t text_bytes_max = 1024;
  std::uint64_t record_bytes_max = 256ULL << 20;
};
inline constexpr NamespaceLimits kNamespaceLimits{};

// The canonical tagged encoding (docs/format.md): each field once, in tag order, as
// [tag u8][length u32][bytes], so that no two namespaces encode alike.
std::vector<std::byte> encode(const Namespace& ns);
// Errors: malformed (not the canonical form), invalid (a field out of range).
Result<Namespace> decode_namespace(std::span<const std::byte> bytes);
// XXH3-128 of encode(ns).
NamespaceId id_of(const Namespace& ns);

// key = XXH3-128(namespace id, parent key, number of tokens, tokens), but for its first 35 bits: 7
// consecutive blocks of a prefix (kKeyGroup) have the first 32 in common, those of the first of
// them, so that tables by key find what is used together in one place; the next 3, the lowest of
// byte 4, are the block's place among the 7. `tokens` is one whole block.
Key chain_key(const NamespaceId& ns, const Key& parent, std::span<const Token> tokens) noexcept;

// The keys of all whole blocks of `tokens`, in order; the parent of the first is the zero key.
std::vector<Key> chain_keys(const NamespaceId& ns, std::uint32_t block_tokens,
                            std::span<const Token> tokens);

// How many leading blocks of a prompt may come from a cache: never the block that holds the last
// token, whose logits must be computed. 0 for an empty prompt.
constexpr std::size_t blocks_matchable(std::size_t tokens, std::uint32_t block_tokens) noexcept {
  return tokens == 0 ? 0 : (tokens - 1) / block_tokens;
}

}  // namespace kvtier
