#include "engine_adapter/reference/scheduler/pages/admission.h"

#include <algorithm>

#include "engine_adapter/reference/scheduler/pages/page_needs.h"

namespace kvtier::engine {

using State = LiveRequest::State;

// What is parked was here before what waits. While the first of them has yet to let go of its
// pages, nobody is next.
LiveRequest* Admission::next() const {
  LiveRequest* first = nullptr;
  for (const auto& [id, live] : requests_.all()) {
    if (live->state != State::parked && live->state != State::parking) continue;
    if (first == nullptr || live->goes_before(*first)) first = live.get();
  }
  if (first != nullptr) return first->state == State::parked ? first : nullptr;
  return requests_.first_waiting();
}

bool Admission::admit() {
  const std::uint32_t block_tokens = pool_.layout().block_tokens;
  bool admitted = false;
  for (;;) {
    Running running;
    for (const auto& [id, live] : requests_.all()) {
      if (live->state != State::running) continue;
      ++running.requests;
      running.width += live->width();
      running.promised += live->width() + pages_missing(*live, block_tokens);
    }
    metrics_.running_most = std::max(metrics_.running_most, running.requests);
    LiveRequest* const live = next();
    if (live == nullptr || running.requests >= options_.running_max) return admitted;
    if (options_.earlier.fixed_batches && !admitted && running.requests != 0) return false;
    if (!has_room_for(*live, running)) return admitted;
    if (!is_looked_up(*live)) return admitted;
    if (!exact_.provide(*live)) {
      if (live->state == State::ended) continue;
      return admitted;
    }
    if (live->state == State::parked) {
      resume(*live);
    } else {
      start(*live);
    }
    admitted = true;
  }
}

// Of those that are there already each goes on to the end of what it has, and a page beyond. Let in
// on pages that one before it has yet to take, this one would be parked for it, come back at once,
// and so for ever.
bool Admission::has_room_for(const LiveRequest& live, const Running& running) const {
  const std::uint32_t block_tokens = pool_.layout().block_tokens;
  if (const std::uint32_t reserved = options_.earlier.reserved_tokens; reserved != 0) {
    const std::uint64_t answers = running.width + std::max<std::uint32_t>(live.width(), 1);
    const std::uint64_t pages = answers * blocks_of(reserved, block_tokens);
    if (running.requests != 0 && pages > pool_.pages()) return false;
  }
  std::uint32_t needed = pages_wanted(live, block_tokens) + running.promised;
  if (running.requests == 0) needed = std::min(needed, pool_.pages());
  return pool_.pages_free() + pool_.pages_idle() >= needed;
}

// What the daemon asks others for takes it some milliseconds, of the request's own time.
bool Admission::is_looked_up(LiveRequest& live) const {
  if (live.lookup == nullptr) return true;
  if (!live.lookup->answered.load(std::memory_order_acquire)) {
    if (Clock::now() < live.lookup->deadline) return false;
    live.lookup->given_up.store(true);
  }
  live.lookup = nullptr;
  return true;
}

void Admission::resume(LiveRequest& live) {
  live.state = State::running;
  ++metrics_.resumptions;
  for (const auto& branch : live.branches) {
    if (!branch->ended) branches_.begin(live, *branch, LoadPolicy::always_load);
  }
}

void Admission::start(LiveRequest& live) {
  const Request& request = live.request;
  requests_.take_from_queue(live);
  live.result.queued = Clock::now() - live.submitted;
  // A daemon that answers nobody had the time in the queue, too.
  if (worker_.silent()) live.wait.spend(live.result.queued);
  metrics_.prompt_tokens += request.prompt.size();
  live.branches.push_back(std::make_unique<Branch>(0, request.sampling));
  Branch& branch = *live.branches.back();
  branch.tokens = request.prompt;
  branches_.begin(live, branch, options_.load_policy);
  live.result.plan = branch.fill->decided();
}

}  // namespace kvtier::engine
