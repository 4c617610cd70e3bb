// How well a model predicts a text, in bits per byte: what a storage format costs in quality.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/tokenizer/tokenizer.h"

namespace kvtier::engine {

struct Score {
  double bits = 0;
  std::uint64_t bytes = 0;   // of the scored tokens
  std::uint64_t tokens = 0;  // scored
  std::uint64_t windows = 0;
  std::vector<double> parts;  // bits per byte of every so many tokens, as they were asked for

  double bits_per_byte() const noexcept {
    return bytes == 0 ? 0 : bits / static_cast<double>(bytes);
  }
};

// Cuts `tokens` into windows of `context` tokens (at least 2) that do not overlap, each on its own.
// A window's first token has nothing to be predicted from: neither its bits nor its bytes count.
// With `part_tokens` each stretch of so many scored tokens is told by itself, too.
// Errors: invalid (nothing to score), no_space (the pool has no room for a window).
Result<Score> score(Model& model, PagePool& pool, const Tokenizer& tokenizer,
                    std::span<const Token> tokens, std::uint32_t context,
                    std::uint64_t part_tokens = 0);

}  // namespace kvtier::engine
