#include "engine_adapter/reference/scheduler/speculation/ngrams.h"

#include <algorithm>
#include <bit>

namespace kvtier::engine {
namespace {

constexpr std::size_t kPlacesMin = 256;

}  // namespace

// Where the end of `run` is noted, or would be: open addressing, at most half of the places taken.
// The upper half of a product is what its factors mix well.
std::uint32_t& Ngrams::place(std::span<const Token> tokens, std::span<const Token> run) {
  std::uint64_t hash = 0;
  for (const Token token : run) hash = (hash ^ token) * 0x9E3779B97F4A7C15ULL;
  for (std::size_t at = hash >> 32;; ++at) {
    std::uint32_t& end = ends_[at & (ends_.size() - 1)];
    if (end == 0) return end;
    if (std::ranges::equal(tokens.subspan(end - kNgramTokens, kNgramTokens), run)) return end;
  }
}

// All but the last run, which nothing follows yet.
void Ngrams::note(std::span<const Token> tokens) {
  if (2 * tokens.size() > ends_.size()) {
    ends_.assign(std::bit_ceil(std::max(4 * tokens.size(), kPlacesMin)), 0);
    noted_ = 0;
  }
  for (; noted_ + kNgramTokens < tokens.size(); ++noted_) {
    place(tokens, tokens.subspan(noted_, kNgramTokens)) =
        static_cast<std::uint32_t>(noted_ + kNgramTokens);
  }
}

std::vector<Token> Ngrams::propose(std::span<const Token> tokens, std::uint32_t count) {
  if (tokens.size() <= kNgramTokens) return {};
  note(tokens);
  const std::size_t end = place(tokens, tokens.last(kNgramTokens));
  if (end == 0) return {};
  std::vector<Token> proposed;
  for (std::size_t from = end; proposed.size() < count; ++from) {
    proposed.push_back(from < tokens.size() ? tokens[from] : proposed[from - tokens.size()]);
  }
  return proposed;
}

}  // namespace kvtier::engine
