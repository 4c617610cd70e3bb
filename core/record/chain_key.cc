// Keys of blocks, which are on the way of every lookup: what they are hashed with is compiled in
// here, for their short inputs, which the library's own code for long ones does nothing for. A
// source of its own, so that nothing else is.
#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "core/base/check.h"
#include "kvtier/namespace.h"

namespace kvtier {

namespace {

struct Words {
  std::uint64_t first, last;
};
static_assert(sizeof(Words) == sizeof(Key));

}  // namespace

// In whole words: each key waits for the one before it, and a word that was stored in parts comes
// late.
Key chain_key(const NamespaceId& ns, const Key& parent, std::uint32_t count,
              std::span<const std::byte> proof) noexcept {
  KVTIER_CHECK(proof.size() <= kProofBytesMax);
  constexpr std::size_t kFixed = 16 + 16 + 4;
  std::byte input[kFixed + kProofBytesMax];
  const auto before = std::bit_cast<Words>(parent);
  std::memcpy(input, ns.bytes.data(), 16);
  std::memcpy(input + 16, &before.first, 8);
  std::memcpy(input + 24, &before.last, 8);
  std::memcpy(input + 32, &count, sizeof count);
  if (!proof.empty()) std::memcpy(input + kFixed, proof.data(), proof.size());
  const XXH128_hash_t hash = XXH3_128bits(input, kFixed + proof.size());
  // The canonical order is big-endian.
  Words key{__builtin_bswap64(hash.high64), __builtin_bswap64(hash.low64)};
  constexpr std::uint64_t kGroupMask = 0xFFFFFFFF;  // the first four bytes
  constexpr std::uint64_t kPlaceMask = 7ULL << 32;  // of the fifth
  const bool begins = (before.first | before.last) == 0;
  const std::uint64_t place = begins ? 0 : (((before.first & kPlaceMask) >> 32) + 1) % kKeyGroup;
  if (place != 0) key.first = (key.first & ~kGroupMask) | (before.first & kGroupMask);
  key.first = (key.first & ~kPlaceMask) | place << 32;
  return std::bit_cast<Key>(key);
}

Key chain_key(const NamespaceId& ns, const Key& parent, std::span<const Token> tokens) noexcept {
  return chain_key(ns, parent, static_cast<std::uint32_t>(tokens.size()), std::as_bytes(tokens));
}

std::vector<Key> chain_keys(const NamespaceId& ns, std::uint32_t block_tokens,
                            std::span<const Token> tokens) {
  std::vector<Key> keys;
  keys.reserve(tokens.size() / block_tokens);
  Key parent;
  for (std::size_t at = 0; at + block_tokens <= tokens.size(); at += block_tokens) {
    parent = chain_key(ns, parent, tokens.subspan(at, block_tokens));
    keys.push_back(parent);
  }
  return keys;
}

}  // namespace kvtier
