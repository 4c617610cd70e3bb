// Runs steps, and gives everybody what came of them: the requests their tokens, the cache the
// blocks, the cost model the time. Owned by the engine.
//
// Invariant: no block is offered, and no token is told, before it is known that all blocks which it
// was computed from held.
//
// One thread: the engine's.
#pragma once

#include <span>
#include <vector>

#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/scheduler/answers/answers.h"
#include "engine_adapter/reference/scheduler/live_requests.h"
#include "engine_adapter/reference/scheduler/pages/parking.h"
#include "engine_adapter/reference/scheduler/prefix/prefix_fill.h"
#include "engine_adapter/reference/scheduler/speculation/speculation.h"
#include "engine_adapter/reference/scheduler/steps/branch_input.h"
#include "engine_adapter/reference/scheduler/steps/row_questions.h"
#include "engine_adapter/reference/scheduler/steps/step_times.h"

namespace kvtier::engine {

class Steps {
 public:
  // All outlive it.
  Steps(const FillParts& parts, LiveRequests& requests, Parking& parking, Answers& answers,
        Speculation& speculation)
      : model_(parts.model),
        store_(parts.store),
        offers_(parts.offers),
        metrics_(parts.metrics),
        step_tokens_(parts.step_tokens),
        block_tokens_(parts.pool.layout().block_tokens),
        requests_(requests),
        parking_(parking),
        answers_(answers),
        speculation_(speculation),
        times_(parts.model, parts.costs) {}
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  // One step, or two: see the body. At least one input.
  void run(std::vector<BranchInput>& inputs);
  // There is nothing to run.
  void note_idle() { times_.note_idle(); }

 private:
  void run_part(std::span<BranchInput> inputs, bool telling);
  void take_back_wrong(std::span<BranchInput> inputs);
  Stage stage_of(const BranchInput& input) const;
  void measure(std::span<const BranchInput> inputs, bool waited, Clock::time_point begun);
  void give_way(std::span<BranchInput> inputs, const Error& error);
  bool settle(BranchInput& input, bool waited);
  void count(BranchInput& input, std::uint32_t begin, std::uint32_t end);
  void offer_new(LiveRequest& live, Branch& branch);

  Model& model_;
  BlockStore& store_;
  Offers& offers_;
  SchedulerMetrics& metrics_;
  const std::uint32_t step_tokens_;
  const std::uint32_t block_tokens_;
  LiveRequests& requests_;
  Parking& parking_;
  Answers& answers_;
  Speculation& speculation_;
  StepTimes times_;
  // Of the part of a step that ran last.
  RowQuestions asked_;
  std::vector<Token> chosen_;
};

}  // namespace kvtier::engine
