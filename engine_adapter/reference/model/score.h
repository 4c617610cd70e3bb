// How well a model predicts a text, in bits per byte: what a storage format costs in quality.
#pragma once

#include <cstdint>
#include <span>

#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/tokenizer/tokenizer.h"

namespace kvtier::engine {

struct Score {
  double bits = 0;
  std::uint64_t bytes = 0;   // of the scored tokens
  std::uint64_t tokens = 0;  // scored
  std::uint64_t windows = 0;

  double bits_per_byte() const noexcept {
    return bytes == 0 ? 0 : bits / static_cast<double>(bytes);
  }
};

// Cuts `tokens` into windows of `context` tokens (at least 2) that do not overlap, each on its own.
// A window's first token has nothing to be predicted from: neither its bits nor its bytes count.
// Errors: invalid (nothing to score), no_space (the pool has no room for a window).
Result<Score> score(Model& model, PagePool& pool, const Tokenizer& tokenizer,
                    std::span<const Token> tokens, std::uint32_t context);

}  // namespace kvtier::engine
