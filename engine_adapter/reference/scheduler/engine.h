// The scheduler's inside: takes requests, gives them pages, and computes for all of them in steps.
// It owns and wires the parts; what each does is in its own header:
//
//   LiveRequests  the queue, the order of those with pages, ends
//   Admission     who is given pages next; ExactPages: those of open blocks
//   PageRoom      pages for those that run; Parking: who gives theirs up keeps what it has
//   StepChooser   what a step computes; Steps: runs it, and gives everybody what came of it
//   Answers       tokens, further branches, ends; Speculation: what may come next in them
//
// Order and progress. Requests get pages in the order of the fair queue, none before the one in
// front of it. Those with pages have an order, too (LiveRequest::goes_before): one that needs a
// page and finds none parks others from the back of that order, never one before itself. The first
// therefore can get all pages there are, and submit() took no request that does not fit into the
// pool alone: so the first always gets on, ends, and the next is first.
//
// One thread. A turn() never waits for the daemon.
#pragma once

#include <memory>
#include <optional>

#include "engine_adapter/reference/scheduler/answers/answers.h"
#include "engine_adapter/reference/scheduler/answers/branch_maker.h"
#include "engine_adapter/reference/scheduler/live_requests.h"
#include "engine_adapter/reference/scheduler/pages/admission.h"
#include "engine_adapter/reference/scheduler/pages/exact_pages.h"
#include "engine_adapter/reference/scheduler/pages/page_room.h"
#include "engine_adapter/reference/scheduler/pages/parking.h"
#include "engine_adapter/reference/scheduler/prefix/offers.h"
#include "engine_adapter/reference/scheduler/prefix/prefix_fill.h"
#include "engine_adapter/reference/scheduler/scheduler_options.h"
#include "engine_adapter/reference/scheduler/steps/step_chooser.h"
#include "engine_adapter/reference/scheduler/steps/steps.h"

namespace kvtier::engine {

class Engine {
 public:
  // All outlive it.
  Engine(Model& model, PagePool& pool, LeaseWorker& worker, const SchedulerOptions& options);
  // Cancels what is left.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // `request` has passed check_request().
  void add(RequestId id, Request request, CacheSpace space,
           std::shared_ptr<RequestListener> listener);
  void cancel(RequestId id) { requests_.cancel(id); }
  void cancel_all();

  // Does what can be done now, one step at the most. False: nothing could be.
  bool turn();
  // Nothing is left to do.
  bool idle() const noexcept { return requests_.empty() && !loads_.busy() && !offers_.busy(); }
  // Something moves by itself: copies are under way, or questions to the cache.
  bool busy() const noexcept { return loads_.busy() || offers_.busy(); }
  // When turn() next has something to do though the engine is idle: blocks to offer again.
  std::optional<Clock::time_point> offer_due() const noexcept { return offers_.due(); }
  // They are not offered again, and pages that nobody uses go if that is how they are kept.
  void forget_offers();
  SchedulerMetrics metrics() const;
  CostModel& costs() noexcept { return costs_; }

 private:
  void sweep();
  void look_up(LiveRequest& live);

  Model& model_;
  PagePool& pool_;
  LeaseWorker& worker_;
  const SchedulerOptions options_;
  SchedulerMetrics metrics_;
  CostModel costs_;
  BlockStore store_;
  Loads loads_;
  Offers offers_;
  const FillParts parts_;
  LiveRequests requests_;
  BranchMaker branches_;
  ExactPages exact_;
  Admission admission_;
  Parking parking_;
  PageRoom room_;
  Answers answers_;
  Speculation speculation_;
  StepChooser chooser_;
  Steps steps_;
};

}  // namespace kvtier::engine
