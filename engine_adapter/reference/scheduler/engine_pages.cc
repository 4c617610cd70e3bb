// Who gets pages: requests in turn, and who must give them up.
#include <algorithm>

#include "core/base/check.h"
#include "engine_adapter/reference/scheduler/engine.h"
#include "engine_adapter/reference/scheduler/limits.h"

namespace kvtier::engine {

using State = LiveRequest::State;

// What is parked was here before what waits.
LiveRequest* Engine::next_to_admit() {
  LiveRequest* first = nullptr;
  for (const auto& [id, live] : live_) {
    if (live->state != State::parked && live->state != State::parking) continue;
    if (first == nullptr || live->goes_before(*first)) first = live.get();
  }
  if (first != nullptr) return first->state == State::parked ? first : nullptr;
  const auto front = queue_.front();
  return front ? live_.at(front->id.value).get() : nullptr;
}

// Nobody is parked to let another in, and nobody goes in before the one in front of it: what is
// running ends some day.
bool Engine::admit() {
  bool admitted = false;
  for (;;) {
    std::uint32_t running = 0;
    std::uint32_t promised = 0;
    for (const auto& [id, live] : live_) {
      if (live->state != State::running) continue;
      ++running;
      promised += live->width() + pages_missing(*live);
    }
    LiveRequest* const live = next_to_admit();
    if (live == nullptr || running >= options_.running_max) return admitted;
    // Of those that are there already each goes on to the end of what it has, and a page beyond.
    // Let in on pages that one before it has yet to take, this one would be parked for it, come
    // back at once, and so for ever.
    const std::uint32_t free = pool_.pages_free() + pool_.pages_idle();
    std::uint32_t needed = pages_wanted(*live) + promised;
    if (running == 0) needed = std::min(needed, pool_.pages());
    if (free < needed) return admitted;
    if (!provide_exact(*live)) {
      if (live->state == State::ended) continue;
      return admitted;
    }
    start(*live);
    admitted = true;
  }
}

// Of all the answers that it may have at once.
std::uint32_t Engine::exact_wanted(const LiveRequest& live) const {
  std::uint32_t branches = live.width();
  if (live.beams()) {
    branches *= kBeamGenerations;
  } else if (live.forked) {
    branches = static_cast<std::uint32_t>(
        std::ranges::count(live.branches, false, [](const auto& branch) { return branch->ended; }));
  }
  return branches * kExactPerBranch;
}

std::uint32_t Engine::exact_promised() const {
  std::uint32_t promised = 0;
  for (const auto& [id, live] : live_) {
    const bool has = live->state == State::running || live->state == State::parking;
    if (has) promised += exact_wanted(*live);
  }
  return promised;
}

// Sees to it that the exact pages of `live` and of all who have theirs are there. If they are not,
// it has to wait for others; alone, it has failed.
bool Engine::provide_exact(LiveRequest& live) {
  const std::uint32_t promised = exact_promised();
  const std::size_t needed = promised + exact_wanted(live);
  if (promised == 0) {
    exact_limit_ = std::numeric_limits<std::size_t>::max();  // memory may have been given back
  } else if (needed > std::size_t{options_.running_max} * kExactPerBranch ||
             needed > exact_limit_) {
    return false;
  }
  const auto provided = pool_.provide_exact(needed);
  if (provided) return true;
  exact_limit_ = pool_.exact_made();
  if (promised == 0) fail(live, provided.error());
  return false;
}

// Now and then, not at every request's end: on a GPU giving memory back takes long.
void Engine::trim_exact() {
  const std::uint32_t keep = std::max(exact_promised(), kExactKept);
  if (pool_.exact_made() > 2 * std::size_t{keep}) pool_.trim_exact(keep);
}

std::uint32_t Engine::pages_wanted(const LiveRequest& live) const {
  const std::uint32_t block_tokens = pool_.layout().block_tokens;
  const auto blocks = [&](std::size_t tokens) {
    return static_cast<std::uint32_t>((tokens + block_tokens - 1) / block_tokens);
  };
  if (live.branches.empty()) return blocks(live.request.prompt.size());
  const auto shared = static_cast<std::uint32_t>(live.request.prompt.size() / block_tokens);
  std::uint32_t pages = shared;
  for (const auto& branch : live.branches) {
    if (!branch->ended) pages += blocks(branch->tokens.size()) - shared;
  }
  return pages;
}

// Of the tokens it has, those without a page yet.
std::uint32_t Engine::pages_missing(const LiveRequest& live) const {
  const std::uint32_t block_tokens = pool_.layout().block_tokens;
  std::uint32_t missing = 0;
  for (const auto& branch : live.branches) {
    if (branch->ended) continue;
    const auto blocks =
        static_cast<std::uint32_t>((branch->tokens.size() + block_tokens - 1) / block_tokens);
    const auto there = static_cast<std::uint32_t>(branch->sequence->records().size());
    missing += blocks - std::min(blocks, there);
  }
  return missing;
}

void Engine::start(LiveRequest& live) {
  const bool resumed = live.state == State::parked;
  live.state = State::running;
  if (resumed) {
    ++metrics_.resumptions;
    for (const auto& branch : live.branches) {
      if (!branch->ended) start_branch(live, *branch, LoadPolicy::always_load);
    }
    return;
  }
  const Request& request = live.request;
  queue_.remove(request.client, {live.id, request.priority});
  live.expected_tokens = static_cast<std::uint32_t>(request.prompt.size());
  queue_.expect(request.client, live.expected_tokens);
  live.rank = next_rank_++;
  live.result.queued = Clock::now() - live.submitted;
  // A daemon that answers nobody had the time in the queue, too.
  if (worker_.silent()) live.wait.spend(live.result.queued);
  metrics_.prompt_tokens += request.prompt.size();
  live.branches.push_back(std::make_unique<Branch>(0, request.sampling));
  Branch& branch = *live.branches.back();
  branch.tokens = request.prompt;
  start_branch(live, branch, options_.load_policy);
  live.result.plan = branch.fill->decided();
}

void Engine::start_branch(LiveRequest& live, Branch& branch, LoadPolicy policy) {
  branch.sequence = std::make_unique<Sequence>(pool_, live.space.id, live.tokens_most);
  branch.fill =
      std::make_unique<PrefixFill>(parts_, live.space, branch.tokens, *branch.sequence, live.wait);
  // A row whose logits are still to be looked at is computed.
  if (live.tells_prompt()) {
    branch.fill->take_at_most(
        static_cast<std::uint32_t>(live.told.size() / pool_.layout().block_tokens));
  }
  branch.fill->plan(policy);
}

LiveRequest* Engine::victim_of(const LiveRequest& live) {
  LiveRequest* last = nullptr;
  for (const auto& [id, other] : live_) {
    if (other->state != State::running || !live.goes_before(*other)) continue;
    if (last == nullptr || last->goes_before(*other)) last = other.get();
  }
  return last;
}

// Sees to it that `pages` are free, if not now then, by parking others, soon.
bool Engine::make_room(std::uint32_t pages, const LiveRequest& live) {
  for (;;) {
    while (pool_.pages_free() < pages && store_.give_up_one()) {
    }
    if (pool_.pages_free() >= pages) return true;
    // Pages that are on their way need no further victim.
    std::uint32_t coming = pool_.pages_free();
    for (const auto& [id, other] : live_) {
      if (other->state == State::parking) coming += pages_wanted(*other);
    }
    if (coming >= pages && coming > pool_.pages_free()) return false;
    LiveRequest* const victim = victim_of(live);
    if (victim == nullptr) return false;
    park(*victim);
  }
}

}  // namespace kvtier::engine
