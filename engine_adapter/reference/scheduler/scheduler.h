// Serves many requests at once on one model: continuous batching on a thread of its own.
//
//   Scheduler scheduler(model, pool, spaces, {});
//   auto id = scheduler.submit(std::move(request), listener);   // or why not
//   ...
//   scheduler.cancel(*id);                                      // done() follows
//
// Every request that was taken ends with RequestListener::done(), also by the destructor, which
// cancels what is left.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/model/page_pool.h"
#include "engine_adapter/reference/scheduler/prefix/cache_spaces.h"
#include "engine_adapter/reference/scheduler/request.h"
#include "engine_adapter/reference/scheduler/scheduler_metrics.h"
#include "engine_adapter/reference/scheduler/scheduler_options.h"

namespace kvtier::engine {

class Engine;
class LeaseWorker;

class Scheduler {
 public:
  // All outlive the scheduler, and its thread alone uses the model and the pool. `options` has
  // passed validate().
  Scheduler(Model& model, PagePool& pool, CacheSpaces& spaces, const SchedulerOptions& options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Any thread. Errors: invalid (naming the field), no_space (it could not be served alone with
  // this pool), refused (too many are waiting), those of CacheSpaces::space().
  Result<RequestId> submit(Request request, std::shared_ptr<RequestListener> listener);

  // Any thread. The request ends soon with FinishReason::cancelled, whatever it is doing; nothing
  // happens if it has ended.
  void cancel(RequestId request);

  // Any thread.
  SchedulerMetrics metrics() const;

  // Any thread. How long the step at hand has been going on; 0 between steps. A device that never
  // ends one shows here.
  std::chrono::nanoseconds in_turn() const noexcept;

 private:
  struct Arrival;
  void run();

  Model& model_;
  PagePool& pool_;
  CacheSpaces& spaces_;
  const SchedulerOptions options_;
  std::unique_ptr<LeaseWorker> worker_;
  std::unique_ptr<Engine> engine_;  // its thread's
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Arrival> arrivals_;
  std::vector<RequestId> cancels_;
  std::uint64_t next_id_ = 1;
  std::uint64_t refused_ = 0;
  bool stopping_ = false;
  bool woken_ = false;
  SchedulerMetrics metrics_;
  std::atomic<Clock::rep> turn_since_{0};  // 0: between turns
  std::thread thread_;
};

}  // namespace kvtier::engine
