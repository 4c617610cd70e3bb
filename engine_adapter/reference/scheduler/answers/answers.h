// What becomes of a step's logits: tokens of answers, further branches, ends. Owned by the engine.
//
// A request has one branch until its first token is chosen (LiveRequest::forked); its other answers
// then come from the same logits. Every token is told to the listener as soon as it is chosen, an
// answer's end once. What a step computed in vain (`good` is 0) changes nothing.
//
// One thread: the engine's.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/scheduler/answers/beam_answers.h"
#include "engine_adapter/reference/scheduler/answers/branch_maker.h"
#include "engine_adapter/reference/scheduler/live_requests.h"
#include "engine_adapter/reference/scheduler/steps/branch_input.h"

namespace kvtier::engine {

class Answers {
 public:
  // All outlive it.
  Answers(const ModelConfig& config, LiveRequests& requests, BranchMaker& branches,
          SchedulerMetrics& metrics)
      : config_(config),
        requests_(requests),
        branches_(branches),
        metrics_(metrics),
        beams_(config, requests, branches, metrics) {}
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  // Of a step that only chose: a token and a `good` for each input.
  void take_chosen(std::span<const BranchInput> inputs, std::span<const char> good,
                   std::span<const Token> chosen);
  // Of a step that was asked about rows: `told` has BranchInput::told answers of each input.
  void take_told(std::span<const BranchInput> inputs, std::span<const char> good,
                 std::span<RowAnswer> told);

 private:
  void take_proposed(LiveRequest& live, Branch& branch, std::span<RowAnswer> rows);
  void take_prompt(LiveRequest& live, const Branch& branch, std::span<RowAnswer> answers);
  void take_rows(LiveRequest& live, Branch& branch, std::span<RowAnswer* const> rows);
  void take_token(LiveRequest& live, Branch& branch, ChosenToken chosen);
  bool fork_samples(LiveRequest& live);
  void end_without_tokens(LiveRequest& live);
  void end_answer(LiveRequest& live, Branch& branch, FinishReason reason);

  const ModelConfig& config_;
  LiveRequests& requests_;
  BranchMaker& branches_;
  SchedulerMetrics& metrics_;
  BeamAnswers beams_;
};

}  // namespace kvtier::engine
