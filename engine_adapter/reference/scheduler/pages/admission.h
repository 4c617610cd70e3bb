// Who is given pages next: parked requests in their order, then those of the queue in turn. Owned
// by the engine.
//
// Nobody goes in before the one in front of it, and nobody is parked to let another in: what runs
// ends some day. Whoever is let in has, at that moment, pages for all its tokens beside those that
// the ones before it have yet to take.
//
// One thread: the engine's.
#pragma once

#include "engine_adapter/reference/scheduler/answers/branch_maker.h"
#include "engine_adapter/reference/scheduler/live_requests.h"
#include "engine_adapter/reference/scheduler/pages/exact_pages.h"
#include "engine_adapter/reference/scheduler/prefix/lease_worker.h"
#include "engine_adapter/reference/scheduler/scheduler_options.h"

namespace kvtier::engine {

class Admission {
 public:
  // All outlive it.
  Admission(PagePool& pool, LiveRequests& requests, ExactPages& exact, BranchMaker& branches,
            LeaseWorker& worker, const SchedulerOptions& options, SchedulerMetrics& metrics)
      : pool_(pool),
        requests_(requests),
        exact_(exact),
        branches_(branches),
        worker_(worker),
        options_(options),
        metrics_(metrics) {}
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // Lets in whom it can. Whether there was any.
  bool admit();

 private:
  // Of the requests that have pages.
  struct Running {
    std::uint32_t requests = 0;
    std::uint32_t width = 0;
    std::uint32_t promised = 0;  // pages that they have yet to take
  };
  LiveRequest* next() const;
  bool has_room_for(const LiveRequest& live, const Running& running) const;
  bool is_looked_up(LiveRequest& live) const;
  void start(LiveRequest& live);
  void resume(LiveRequest& live);

  PagePool& pool_;
  LiveRequests& requests_;
  ExactPages& exact_;
  BranchMaker& branches_;
  LeaseWorker& worker_;
  const SchedulerOptions& options_;
  SchedulerMetrics& metrics_;
};

}  // namespace kvtier::engine
