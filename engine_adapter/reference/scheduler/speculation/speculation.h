// Proposes the next tokens of answers, so that one step computes several, and takes back what the
// model would not have chosen. Owned by the engine.
//
// A row of a proposed token asks the model for its choice, with the draw that is the next token's
// with or without proposals, and the next row counts if its token is that choice. So an answer has
// the tokens that it would have without proposals, chosen from the same logits where the model's
// rows are independent (Model::rows_are_independent): greedy or sampled, whatever is proposed. For
// tokens that were proposed with certainty this is the rejection sampling of Leviathan et al., Fast
// Inference from Transformers via Speculative Decoding (2023): a token of probability p is kept
// with p, and where it is not, the choice is one of the others by their probabilities.
//
// Nothing is proposed for beams, nor before an answer's first token. Pages for proposals are idle
// ones: nobody is parked for them.
//
// One thread: the engine's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/scheduler/pages/page_room.h"
#include "engine_adapter/reference/scheduler/scheduler_metrics.h"
#include "engine_adapter/reference/scheduler/scheduler_options.h"
#include "engine_adapter/reference/scheduler/speculation/drafts.h"
#include "engine_adapter/reference/scheduler/steps/branch_input.h"

namespace kvtier::engine {

class Speculation {
 public:
  // All outlive it. `options` is part of what has passed SchedulerOptions::validate().
  Speculation(const SpeculationOptions& options, const ModelConfig& config, PageRoom& room,
              SchedulerMetrics& metrics);
  Speculation(const Speculation&) = delete;
  Speculation& operator=(const Speculation&) = delete;

  // Adds proposals to `inputs`, which are answers of one row each, with pages for that: `rows` rows
  // at most. How many they became.
  std::uint32_t propose(std::span<BranchInput> inputs, std::uint32_t rows);

  // `rows`, one for each of the input's tokens, has what the model chose. Takes back the tokens
  // behind the last one that is right, and says in `input` how many are.
  void keep(BranchInput& input, std::span<const RowAnswer> rows);

 private:
  std::uint32_t count_for(const BranchInput& input) const;
  std::uint32_t add(BranchInput& input, std::span<const Token> proposed);

  const SpeculationOptions options_;
  const ModelConfig& config_;
  PageRoom& room_;
  SchedulerMetrics& metrics_;
  std::optional<Drafts> drafts_;
};

}  // namespace kvtier::engine
