// The blocks that one input of a step touches.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine_adapter/reference/model/model.h"

namespace kvtier::engine {

struct TouchedBlock {
  std::uint32_t block;
  std::uint32_t first_row;    // of the input
  std::uint32_t first_token;  // place of that row in the block
  std::uint32_t tokens;
  bool completed;

  // Where its exact values are: the sequence's open blocks, or, where all of it is computed in this
  // step, a page of the step's own for one layer at a time.
  bool was_open() const noexcept { return first_token != 0; }
  bool stays_open() const noexcept { return !was_open() && !completed; }
  bool is_whole() const noexcept { return !was_open() && completed; }
};

// f(touched block), in order. The input's tokens are not yet appended.
template <class F>
void for_each_touched(const StepInput& input, std::uint32_t block_tokens, const F& f) {
  const std::uint32_t begin = input.sequence->length();
  const std::uint32_t end = begin + static_cast<std::uint32_t>(input.tokens.size());
  for (std::uint32_t at = begin; at < end;) {
    const std::uint32_t block = at / block_tokens;
    const std::uint32_t until = std::min(end, (block + 1) * block_tokens);
    f(TouchedBlock{.block = block,
                   .first_row = at - begin,
                   .first_token = at % block_tokens,
                   .tokens = until - at,
                   .completed = until % block_tokens == 0});
    at = until;
  }
}

}  // namespace kvtier::engine
