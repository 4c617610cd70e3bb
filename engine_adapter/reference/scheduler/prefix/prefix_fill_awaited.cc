// Of PrefixFill, what awaits the blocks of a prompt that another engine is computing.
#include <algorithm>

#include "engine_adapter/reference/scheduler/limits.h"
#include "engine_adapter/reference/scheduler/prefix/prefix_fill.h"

namespace kvtier::engine {

// Of those that have come since the last look. False: none, or there is no page for it.
bool PrefixFill::take_awaited() {
  const auto now = Clock::now();
  if (now < look_again_) return false;
  const std::uint32_t before = blocks_planned();
  const std::uint32_t there = std::min(space_.cache->match(tokens_).blocks, awaited_end_);
  reserve_ahead(there);
  needs_page_ = there > before && blocks_planned() == before;
  if (needs_page_) return false;
  look_again_ = now + kAwaitedInterval;
  if (blocks_planned() == before) {
    look_further(now);
    return false;
  }
  awaiting_since_.reset();
  handoff_->news();
  start_runs(before);
  return true;
}

// Where the other engine is on another host, its blocks are known here once they were asked for.
void PrefixFill::look_further(Clock::time_point now) {
  if (!space_.cache->looks_further() || now < look_further_again_) return;
  if (lookup_ && !lookup_->answered.load(std::memory_order_acquire)) return;
  look_further_again_ = now + kAwaitedFurtherInterval;
  lookup_ = std::make_shared<LeaseTicket>();
  lookup_->looks_up = true;
  lookup_->cache = space_.cache;
  lookup_->tokens.assign(tokens_.begin(), tokens_.end());
  lookup_->deadline = wait_.deadline(now);
  parts_.worker.ask(lookup_);
}

bool PrefixFill::awaits_more() {
  if (next_block() >= awaited_end_) return false;
  const auto now = Clock::now();
  if (now < look_again_) return true;
  if (!awaiting_since_) awaiting_since_ = cache_seen_ = now;
  if (space_.cache->state()) cache_seen_ = now;
  if (now - cache_seen_ >= wait_.left()) wait_.give_up();
  if (!wait_.over() && now - *awaiting_since_ < handoff_->left()) return true;
  stop_awaiting();
  return false;
}

void PrefixFill::stop_awaiting() {
  awaited_end_ = 0;
  handoff_->give_up();
  ++parts_.metrics.handoffs_given_up;
  count_lookup();
}

}  // namespace kvtier::engine
