// How many pages a request needs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine_adapter/reference/scheduler/live_request.h"

namespace kvtier::engine {

// Of blocks that `tokens` tokens fill or begin.
constexpr std::uint32_t blocks_of(std::size_t tokens, std::uint32_t block_tokens) noexcept {
  return static_cast<std::uint32_t>((tokens + block_tokens - 1) / block_tokens);
}

// For all tokens that it has; the prompt's complete blocks once, whatever its answers.
std::uint32_t pages_wanted(const LiveRequest& live, std::uint32_t block_tokens);
// Of a running one: for the tokens that it has, those that it has no page for yet.
std::uint32_t pages_missing(const LiveRequest& live, std::uint32_t block_tokens);
// Of a running one: places for tokens in its pages that hold none.
std::uint64_t token_places_unused(const LiveRequest& live, std::uint32_t block_tokens);

}  // namespace kvtier::engine
