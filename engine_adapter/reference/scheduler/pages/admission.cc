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
    std::uint32_t running = 0;
    std::uint32_t promised = 0;
    for (const auto& [id, live] : requests_.all()) {
      if (live->state != State::running) continue;
      ++running;
      promised += live->width() + pages_missing(*live, block_tokens);
    }
    LiveRequest* const live = next();
    if (live == nullptr || running >= options_.running_max) return admitted;
    if (!has_room_for(*live, running, promised)) return admitted;
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
bool Admission::has_room_for(const LiveRequest& live, std::uint32_t running,
                             std::uint32_t promised) const {
  std::uint32_t needed = pages_wanted(live, pool_.layout().block_tokens) + promised;
  if (running == 0) needed = std::min(needed, pool_.pages());
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
