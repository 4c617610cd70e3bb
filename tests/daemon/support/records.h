// Small namespaces, prefixes in them, and records whose every byte follows from their key.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "core/record/record.h"
#include "kvtier/prefix.h"

namespace kvtier::daemon::testing {

inline constexpr std::uint32_t kBlockTokens = 4;

// `wide`: records of 12 KiB, of 8 KiB otherwise.
inline Namespace small_namespace(const std::string& model, bool wide = false) {
  Namespace ns;
  ns.model = model;
  ns.layers = 1;
  ns.kv_heads = 1;
  ns.head_dim_k = wide ? 160 : 4;
  ns.head_dim_v = wide ? 160 : 4;
  ns.block_tokens = kBlockTokens;
  ns.format = StorageFormat::f32;
  ns.positions = "rope";
  return ns;
}
inline constexpr std::uint64_t kRecordBytes = 8192;
inline constexpr std::uint64_t kWideRecordBytes = 12288;

struct TestBlock {
  BlockIdentity identity;
  std::vector<Token> tokens;
  std::vector<std::byte> proof_of_more{};  // of one that has more to it than its tokens
  const Key& key() const noexcept { return identity.key; }
  std::span<const std::byte> proof() const noexcept {
    return proof_of_more.empty() ? std::as_bytes(std::span(tokens)) : std::span(proof_of_more);
  }
};

// Of a namespace whose blocks have extra bytes, or digests in place of tokens.
inline std::vector<TestBlock> blocks_of(const Prefix& prefix) {
  std::vector<TestBlock> blocks;
  for (std::uint32_t i = 0; i < prefix.blocks(); ++i) {
    const auto proof = prefix.proof(i);
    blocks.push_back(
        {{prefix.ns(), prefix.keys()[i], prefix.parent(i), i}, {}, {proof.begin(), proof.end()}});
  }
  return blocks;
}

// Blocks of which each has some of the bytes of an image besides its tokens.
inline Namespace namespace_with_extra(const std::string& model) {
  Namespace ns = small_namespace(model);
  ns.extra_bytes_max = 64;
  return ns;
}
inline std::vector<TestBlock> blocks_with_extra(const Namespace& ns, std::size_t blocks,
                                                Token first, const std::string& image) {
  Prefix prefix(ns);
  for (std::size_t at = 0; at < blocks * kBlockTokens; at += 2 * kBlockTokens) {
    if (!prefix.cover(at + 1, at + 3, std::as_bytes(std::span(image)))) return {};
  }
  for (std::size_t i = 0; i < blocks * kBlockTokens; ++i) {
    const Token token = first + static_cast<Token>(i);
    if (!prefix.append({&token, 1})) return {};
  }
  return blocks_of(prefix);
}

// Blocks that the engine names by digests of its own.
inline Namespace namespace_of_digests(const std::string& model) {
  Namespace ns = small_namespace(model);
  ns.digest_bytes = 32;
  return ns;
}
inline std::vector<TestBlock> blocks_of_digests(const Namespace& ns, std::size_t blocks,
                                                unsigned first) {
  Prefix prefix(ns);
  for (std::size_t i = 0; i < blocks; ++i) {
    std::vector<std::byte> digest(ns.digest_bytes, std::byte(first));
    std::memcpy(digest.data(), &i, sizeof i);
    if (!prefix.append_digest(digest)) return {};
  }
  return blocks_of(prefix);
}

// The first `blocks` blocks of a prompt that begins with `first` and goes on with its own numbers.
inline std::vector<TestBlock> prefix_of(const NamespaceId& ns, std::size_t blocks, Token first) {
  std::vector<TestBlock> prefix;
  Key parent;
  for (std::uint32_t i = 0; i < blocks; ++i) {
    std::vector<Token> tokens;
    for (std::uint32_t t = 0; t < kBlockTokens; ++t) tokens.push_back(first + i * kBlockTokens + t);
    const Key key = chain_key(ns, parent, tokens);
    prefix.push_back({{ns, key, parent, i}, tokens});
    parent = key;
  }
  return prefix;
}

inline std::vector<Key> keys_of(std::span<const TestBlock> prefix) {
  std::vector<Key> keys;
  for (const TestBlock& block : prefix) keys.push_back(block.key());
  return keys;
}

inline void fill_payload(std::span<std::byte> record, const RecordLayout& layout, const Key& key) {
  for (std::size_t at = 0; at < layout.payload_bytes; at += sizeof key) {
    std::memcpy(record.data() + layout.header_bytes + at, &key, sizeof key);
  }
}

inline void fill_record(std::span<std::byte> record, const RecordLayout& layout,
                        const TestBlock& block) {
  write_header(record, layout, block.identity, block.proof());
  fill_payload(record, layout, block.key());
}

inline bool record_is(std::span<const std::byte> record, const RecordLayout& layout,
                      const TestBlock& block) {
  if (!verify_header(record, layout, block.identity, block.proof())) return false;
  for (std::size_t at = 0; at < layout.payload_bytes; at += sizeof(Key)) {
    if (std::memcmp(record.data() + layout.header_bytes + at, &block.identity.key, sizeof(Key)) !=
        0) {
      return false;
    }
  }
  return true;
}

}  // namespace kvtier::daemon::testing
