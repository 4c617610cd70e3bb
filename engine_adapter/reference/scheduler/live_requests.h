// The requests that the engine has taken, from add() to their end: the queue of those that wait,
// the order of those that have pages, and how each of them ends. Owned by the engine.
//
// Invariants: a request is in the queue for as long as it is State::waiting. Its listener is told
// once that it is done, by end() or fail(), which do nothing for one that has ended already. After
// that it is in all() no more, but its memory stays until sweep(), since the step at hand may still
// name it.
//
// What is computed for a request, and where its pages come from, is others' business.
//
// One thread: the engine's.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "engine_adapter/reference/scheduler/fair_queue.h"
#include "engine_adapter/reference/scheduler/live_request.h"
#include "engine_adapter/reference/scheduler/scheduler_metrics.h"

namespace kvtier::engine {

class LiveRequests {
 public:
  using ById = std::map<std::uint64_t, std::unique_ptr<LiveRequest>>;

  // `metrics` outlives it.
  explicit LiveRequests(SchedulerMetrics& metrics) : metrics_(metrics) {}
  LiveRequests(const LiveRequests&) = delete;
  LiveRequests& operator=(const LiveRequests&) = delete;

  // Into the queue.
  void add(std::unique_ptr<LiveRequest> live);
  void cancel(RequestId id);
  void cancel_all();
  // Lets go of those that have ended. Whether there was any.
  bool sweep();
  // None is left, not even one that has ended.
  bool empty() const noexcept { return live_.empty() && ended_.empty(); }

  const ById& all() const noexcept { return live_; }
  // Whose turn it is in the queue; null: nobody waits.
  LiveRequest* first_waiting() const;
  // `live`, which waits, is given pages and its place in the order of those that have some. Its
  // prompt is expected to be computed.
  void take_from_queue(LiveRequest& live);
  std::uint32_t waiting() const noexcept { return queue_.size(); }

  // Those that run, who goes before the others first.
  std::vector<LiveRequest*> running() const;
  // The same in the clients' turns, as in the queue.
  std::vector<LiveRequest*> running_in_turn() const;
  // So many tokens were computed for it.
  void charge(LiveRequest& live, std::uint32_t tokens);

  // What the cache has given its prompt so far. `settled`: what comes later counts no more.
  void note_cached(LiveRequest& live, bool settled);

  void end(LiveRequest& live, FinishReason of_open_answers);
  void fail(LiveRequest& live, Error error);

 private:
  SchedulerMetrics& metrics_;
  FairQueue queue_;
  ById live_;
  std::vector<std::unique_ptr<LiveRequest>> ended_;
  std::uint64_t next_rank_ = 1;
};

}  // namespace kvtier::engine
