// What the next step computes: a row for every answer under way and rows for what is proposed to
// come next in it, then chunks of prompts, in the clients' turns. Owned by the engine.
//
// Every input that is chosen belongs to a request that runs, and has its pages. Beams of one
// request go on together or not at all.
//
// One thread: the engine's. Never waits for a block.
#pragma once

#include <cstdint>
#include <vector>

#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/scheduler/live_requests.h"
#include "engine_adapter/reference/scheduler/pages/page_room.h"
#include "engine_adapter/reference/scheduler/pages/parking.h"
#include "engine_adapter/reference/scheduler/speculation/speculation.h"
#include "engine_adapter/reference/scheduler/steps/branch_input.h"

namespace kvtier::engine {

class StepChooser {
 public:
  // All outlive it. `step_tokens`: rows of a step; `beside_answers`: of one with prompts and
  // answers, 0 for no other bound.
  StepChooser(const Model& model, const PagePool& pool, LiveRequests& requests, PageRoom& room,
              Parking& parking, Speculation& speculation, std::uint32_t step_tokens,
              std::uint32_t beside_answers);
  StepChooser(const StepChooser&) = delete;
  StepChooser& operator=(const StepChooser&) = delete;

  // Takes what has arrived for the branches. Empty: nothing can be computed now.
  std::vector<BranchInput> choose();

 private:
  bool can_compute(LiveRequest& live, Branch& branch);
  void add_answers(std::vector<BranchInput>& inputs, std::uint32_t& budget);
  std::vector<std::vector<BranchInput>> answers_ready();
  std::uint32_t beside(std::size_t answers) const;
  void add_prompts(std::vector<BranchInput>& inputs, std::uint32_t& budget);
  std::vector<BranchInput> trusting_input();
  std::uint32_t chunk_of(const LiveRequest& live, const Branch& branch, std::uint32_t budget) const;

  const Model& model_;
  LiveRequests& requests_;
  PageRoom& room_;
  Parking& parking_;
  Speculation& speculation_;
  const std::uint32_t block_tokens_;
  const std::uint32_t step_tokens_;
  const std::uint32_t beside_answers_;
  const std::uint32_t told_rows_max_;  // of a step
  std::uint64_t next_answer_ = 0;      // where the answers' turn begins
};

}  // namespace kvtier::engine
