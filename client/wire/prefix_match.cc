#include "client/wire/prefix_match.h"

#include <algorithm>

namespace kvtier {

// Hashes and probes block by block, more blocks ahead as there are hits: the hashing of the next
// blocks then hides the misses of memory of the ones before.
Match match_prefix(const DirectoryView& directory, const NamespaceId& ns,
                   std::uint32_t block_tokens, std::span<const Token> tokens) noexcept {
  constexpr std::size_t kAhead = 16;
  Key ring[kAhead];
  Match match;
  const std::size_t blocks = blocks_matchable(tokens.size(), block_tokens);
  std::size_t hashed = 0;
  std::size_t ahead = 1;  // a miss costs the hash of one block
  Key parent;
  for (std::size_t i = 0; i < blocks; ++i) {
    for (; hashed < std::min(blocks, i + ahead); ++hashed) {
      parent = chain_key(ns, parent, tokens.subspan(hashed * block_tokens, block_tokens));
      ring[hashed % kAhead] = parent;
      directory.prefetch(parent);
    }
    const TierSet tiers = directory.find(ring[i % kAhead]);
    const auto fastest = std::ranges::find_if(kAllTiers, [&](Tier t) { return tiers.has(t); });
    if (fastest == kAllTiers.end()) break;
    ++match.blocks;
    ++match.per_tier[index_of(*fastest)];
    ahead = std::min(ahead * 2, kAhead);
  }
  return match;
}

}  // namespace kvtier
