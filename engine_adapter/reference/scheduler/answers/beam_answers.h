// Requests with beam search, from one token to the next. Owned by the answers.
//
// A request's branches are its live beams, likeliest first, all of the same length; what has ended
// is a hypothesis. Each step makes new branches of the old ones, so they exist twice meanwhile
// (kBeamGenerations).
//
// One thread: the engine's.
#pragma once

#include <span>

#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/scheduler/answers/beam_search.h"
#include "engine_adapter/reference/scheduler/answers/branch_maker.h"
#include "engine_adapter/reference/scheduler/live_requests.h"

namespace kvtier::engine {

class BeamAnswers {
 public:
  // All outlive it.
  BeamAnswers(const ModelConfig& config, LiveRequests& requests, BranchMaker& branches,
              SchedulerMetrics& metrics)
      : config_(config), requests_(requests), branches_(branches), metrics_(metrics) {}
  BeamAnswers(const BeamAnswers&) = delete;
  BeamAnswers& operator=(const BeamAnswers&) = delete;

  // `rows` are what was told of the beams' logits, in the beams' order. The request may end, or
  // fail.
  void step(LiveRequest& live, std::span<RowAnswer* const> rows);

 private:
  bool go_on(LiveRequest& live, std::span<const BeamChoice> choices,
             std::span<const std::span<const TokenLogprob>> likeliest);
  bool done(const LiveRequest& live) const;
  void finish(LiveRequest& live);

  const ModelConfig& config_;
  LiveRequests& requests_;
  BranchMaker& branches_;
  SchedulerMetrics& metrics_;
};

}  // namespace kvtier::engine
