#include "core/wire/prefix_match.h"

#include <algorithm>

namespace kvtier {
namespace {

// A piece is hashed and asked for as a whole, and looked at while the next is hashed: the hashing
// hides the misses of memory. Longer as there are hits, so that a miss costs the hash of one block.
constexpr std::size_t kPieceMax = 32;

// Hashes blocks of a prompt in turn.
class Hasher {
 public:
  Hasher(const DirectoryView& directory, const NamespaceId& ns, std::uint32_t block_tokens,
         std::span<const Token> tokens) noexcept
      : directory_(directory), ns_(ns), block_tokens_(block_tokens), tokens_(tokens) {}

  // The next piece of the prompt, empty after its last block. Good until the one after the next.
  std::span<const Key> next() noexcept {
    const std::size_t left = tokens_.size() / block_tokens_;
    const auto piece = std::span(rings_[turn_ ^= 1]).first(std::min(left, piece_));
    for (Key& key : piece) {
      key = parent_ = chain_key(ns_, parent_, tokens_.first(block_tokens_));
      tokens_ = tokens_.subspan(block_tokens_);
    }
    directory_.prefetch(piece);
    piece_ = std::min(piece_ * 2, kPieceMax);
    return piece;
  }

 private:
  const DirectoryView& directory_;
  const NamespaceId& ns_;
  std::size_t block_tokens_;
  std::span<const Token> tokens_;
  Key parent_;
  std::size_t piece_ = 1;
  unsigned turn_ = 0;
  std::array<std::array<Key, kPieceMax>, 2> rings_;
};

// False at the first block that is not there.
bool look(const DirectoryView& directory, std::span<const Key> keys, Match& match) noexcept {
  for (const Key& key : keys) {
    const TierSet tiers = directory.find(key);
    if (tiers.empty()) return false;
    ++match.blocks;
    const auto fastest = std::ranges::find_if(kAllTiers, [&](Tier t) { return tiers.has(t); });
    if (fastest != kAllTiers.end()) ++match.per_tier[index_of(*fastest)];
  }
  return true;
}

}  // namespace

Match match_keys(const DirectoryView& directory, std::span<const Key> keys) noexcept {
  Match match;
  std::size_t piece = 1;
  directory.prefetch(keys.first(std::min(keys.size(), piece)));
  while (!keys.empty()) {
    const auto now = keys.first(std::min(keys.size(), piece));
    keys = keys.subspan(now.size());
    piece = std::min(piece * 2, kPieceMax);
    directory.prefetch(keys.first(std::min(keys.size(), piece)));
    if (!look(directory, now, match)) break;
  }
  return match;
}

Match match_prefix(const DirectoryView& directory, const NamespaceId& ns,
                   std::uint32_t block_tokens, std::span<const Token> tokens) noexcept {
  Match match;
  const std::size_t blocks = blocks_matchable(tokens.size(), block_tokens);
  Hasher hasher(directory, ns, block_tokens, tokens.first(blocks * block_tokens));
  if (!look(directory, hasher.next(), match)) return match;
  for (auto piece = hasher.next(); !piece.empty();) {
    const auto after = hasher.next();
    if (!look(directory, piece, match)) return match;
    piece = after;
  }
  return match;
}

}  // namespace kvtier
