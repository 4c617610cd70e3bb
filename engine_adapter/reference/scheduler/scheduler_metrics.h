// What the scheduler counts. Counters only grow; gauges are as of the last step.
#pragma once

#include <array>
#include <cstdint>

#include "kvtier/tier.h"

namespace kvtier::engine {

// Why a request gave up its pages.
enum class ParkedFor : std::uint8_t {
  pages,   // one that goes before it needed them
  memory,  // a step found no memory
};
constexpr std::size_t index_of(ParkedFor why) noexcept {
  return static_cast<std::size_t>(why);
}

struct SchedulerMetrics {
  // Gauges, of requests.
  std::uint32_t waiting = 0;       // not yet given pages
  std::uint32_t running = 0;       // computing, or about to
  std::uint32_t running_most = 0;  // at once, so far
  std::uint32_t loading = 0;       // of those with pages, waiting for blocks
  std::uint32_t parked = 0;
  // Gauges, of pages.
  std::uint32_t pages = 0;         // of the pool
  std::uint32_t pages_used = 0;    // by requests, or read by write-backs
  std::uint32_t pages_cached = 0;  // kept for later requests; given up as pages are needed
  // Places for tokens in pages of requests that hold none: of the last page of each answer, and of
  // pages taken ahead.
  std::uint64_t token_places_unused = 0;
  std::uint64_t tokens_held = 0;  // of requests with pages, each its own, shared pages or not

  std::uint64_t submitted = 0;
  std::uint64_t refused = 0;  // by submit()
  std::uint64_t finished = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t failed = 0;

  std::uint64_t prompt_tokens = 0;      // of requests given pages
  std::uint64_t completion_tokens = 0;  // chosen

  // In tokens of prompts, as vLLM counts them: looked for, and found, in the engine's own pages and
  // then in the cache.
  std::uint64_t local_queries = 0;
  std::uint64_t local_hits = 0;
  std::uint64_t cache_queries = 0;
  std::array<std::uint64_t, kTiersWithRemote> cache_hits{};

  std::uint64_t loads = 0;         // ranges of blocks asked of the cache
  std::uint64_t loads_shared = 0;  // requests that waited for another one's load
  std::uint64_t loads_failed = 0;  // with fewer blocks than asked for
  std::uint64_t plans_load = 0;    // LoadMode, each time one was chosen
  std::uint64_t plans_compute = 0;
  std::uint64_t plans_both = 0;
  std::uint64_t handoffs = 0;              // requests that awaited blocks of another engine
  std::uint64_t handoffs_given_up = 0;     // of those, what did not come in time was computed
  std::uint64_t blocks_offered_again = 0;  // that the cache did not take at first
  std::uint64_t tokens_computed = 0;       // rows of steps, but for proposals that were wrong
  std::uint64_t tokens_recomputed = 0;     // of those, known before to a request that was parked
  std::uint64_t drafts = 0;                // times that tokens were proposed for an answer
  std::uint64_t tokens_proposed = 0;
  std::uint64_t tokens_accepted = 0;  // of those
  std::uint64_t preemptions = 0;
  std::array<std::uint64_t, 2> parked_for{};  // of those, by ParkedFor
  std::uint64_t resumptions = 0;

  std::uint64_t steps = 0;
  std::uint64_t step_ns = 0;
};

}  // namespace kvtier::engine
