#include "engine_adapter/reference/scheduler/pages/page_needs.h"

#include <algorithm>

namespace kvtier::engine {

std::uint32_t pages_wanted(const LiveRequest& live, std::uint32_t block_tokens) {
  const std::size_t prompt = live.request.prompt.size();
  if (live.branches.empty()) return std::min(blocks_of(prompt, block_tokens), live.pages_most);
  const auto shared = static_cast<std::uint32_t>(prompt / block_tokens);
  std::uint32_t pages = shared;
  std::uint32_t open = 0;
  for (const auto& branch : live.branches) {
    if (branch->ended) continue;
    pages += blocks_of(branch->tokens.size(), block_tokens) - shared;
    ++open;
  }
  const std::uint64_t most = std::uint64_t{live.pages_most} * std::max(open, 1U);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(pages, most));
}

std::uint32_t pages_missing(const LiveRequest& live, std::uint32_t block_tokens) {
  std::uint32_t missing = 0;
  for (const auto& branch : live.branches) {
    if (branch->ended) continue;
    const std::uint32_t blocks = blocks_of(branch->tokens.size(), block_tokens);
    const auto there = static_cast<std::uint32_t>(branch->sequence->records().size());
    missing += std::min(blocks - std::min(blocks, there), live.pages_most);
  }
  return missing;
}

std::uint64_t token_places_unused(const LiveRequest& live, std::uint32_t block_tokens) {
  std::uint64_t unused = 0;
  for (const auto& branch : live.branches) {
    if (branch->ended) continue;
    const std::uint64_t places = branch->sequence->records().size() * std::uint64_t{block_tokens};
    unused += places - std::min<std::uint64_t>(places, branch->sequence->length());
  }
  return unused;
}

}  // namespace kvtier::engine
