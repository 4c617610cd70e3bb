// Requests that must give up their pages, and what they keep. Owned by the engine.
//
// A parked request keeps what it has computed: complete blocks in the cache, held there by a lease,
// and the open block's exact values in host memory. Its pages go once the cache has confirmed the
// blocks, or has shown that it will not. Who is parked is not decided here (PageRoom), nor when it
// comes back (Admission).
//
//   running --park()--> parking --advance()--> parked
//
// Invariant: a request that is parking has its pages, one that is parked has none.
//
// One thread: the engine's. Never waits for the daemon.
#pragma once

#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/scheduler/live_requests.h"
#include "engine_adapter/reference/scheduler/prefix/lease_worker.h"

namespace kvtier::engine {

class Parking {
 public:
  // All outlive it.
  Parking(Model& model, PagePool& pool, LiveRequests& requests, LeaseWorker& worker,
          SchedulerMetrics& metrics)
      : model_(model), pool_(pool), requests_(requests), worker_(worker), metrics_(metrics) {}
  Parking(const Parking&) = delete;
  Parking& operator=(const Parking&) = delete;

  // `live` is running. Its pages go soon; at once where there is no cache.
  void park(LiveRequest& live);
  // The same at once, and nothing is kept: its sequences are good for nothing.
  void drop(LiveRequest& live);
  // Takes those that are parking as far as they go. Whether any has moved.
  bool advance();

  // Tokens of the open block that the branch was parked with, where the blocks before it are there
  // again; else 0.
  std::uint32_t open_tokens_due(const Branch& branch) const noexcept;
  // Puts them back; their page is reserved. False: `live` has failed.
  bool restore_open(LiveRequest& live, Branch& branch);

 private:
  void count(LiveRequest& live, ParkedFor why);
  void save(Branch& branch);
  void offer_all(LiveRequest& live);
  bool advance(LiveRequest& live);
  bool ask_for_holds(LiveRequest& live);
  bool take_holds(LiveRequest& live);
  void let_go(LiveRequest& live);

  Model& model_;
  PagePool& pool_;
  LiveRequests& requests_;
  LeaseWorker& worker_;
  SchedulerMetrics& metrics_;
};

}  // namespace kvtier::engine
