// What a step is asked about its rows' logits, and what it answers. The model reads and writes the
// memory here, which is used again by the next step. Owned by the steps.
//
// One thread: the engine's.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/scheduler/steps/branch_input.h"

namespace kvtier::engine {

class RowQuestions {
 public:
  // Whether more is to be told of the input's logits than one token that is chosen.
  static bool concern(const BranchInput& input) noexcept;

  void clear();
  // Adds the questions about the rows of `input`, and says in it how many there are.
  void add(BranchInput& input);

  std::span<const RowQuestion> questions() const noexcept { return questions_; }
  // One for each question.
  std::span<RowAnswer> answers();

 private:
  std::vector<RowQuestion> questions_;
  std::deque<std::vector<Choice>> choices_;  // that the questions refer to
  std::vector<RowAnswer> answers_;
};

}  // namespace kvtier::engine
