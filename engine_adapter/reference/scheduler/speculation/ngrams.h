// Where the runs of a few tokens in a text were last. Of one answer: prompt and tokens so far.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvtier/key.h"

namespace kvtier::engine {

// Shorter runs are found more often and tell less of what comes next.
inline constexpr std::uint32_t kNgramTokens = 3;

class Ngrams {
 public:
  // `count` tokens that followed the last kNgramTokens of `tokens` where these were last before,
  // and what they in their turn repeat; none where these tokens are new. `tokens` begins with the
  // last call's. The time of a call is that of the tokens that are new.
  std::vector<Token> propose(std::span<const Token> tokens, std::uint32_t count);

 private:
  void note(std::span<const Token> tokens);
  std::uint32_t& place(std::span<const Token> tokens, std::span<const Token> run);

  // By a run's hash: where it last ended, 0 for nowhere.
  std::vector<std::uint32_t> ends_;
  std::size_t noted_ = 0;  // runs that begin before it are noted
};

}  // namespace kvtier::engine
