// Byte-pair encoding of one word: joins the adjacent pair of lowest rank, leftmost first, until no
// pair has a rank. O(n log n) in the word's symbols.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvtier/key.h"

namespace kvtier::engine {

class Bpe {
 public:
  struct Merge {
    Token left;
    Token right;
    Token joined;
  };

  // `merges` in the order of their ranks; of two for one pair the later counts.
  explicit Bpe(std::span<const Merge> merges);

  // Appends the tokens that `symbols`, the tokens of a word's single characters or bytes, become.
  void encode(std::span<const Token> symbols, std::vector<Token>& out) const;

 private:
  struct Ranked {
    std::uint32_t rank;
    Token joined;
  };

  const Ranked* find(Token left, Token right) const noexcept;

  std::unordered_map<std::uint64_t, Ranked> merges_;
};

}  // namespace kvtier::engine
