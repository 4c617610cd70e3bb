// Byte-pair encoding of one word: joins the adjacent pair of lowest rank, leftmost first, until no
// pair has a rank. O(n log n) in the word's bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
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
  Bpe(const std::array<Token, 256>& byte_tokens, const std::vector<Merge>& merges);

  // Appends the tokens of `word`.
  void encode(std::string_view word, std::vector<Token>& out) const;

 private:
  struct Ranked {
    std::uint32_t rank;
    Token joined;
  };

  const Ranked* find(Token left, Token right) const noexcept;

  std::array<Token, 256> byte_tokens_;
  std::unordered_map<std::uint64_t, Ranked> merges_;
};

}  // namespace kvtier::engine
