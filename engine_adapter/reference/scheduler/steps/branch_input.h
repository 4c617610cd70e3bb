// What of one branch a step computes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine_adapter/reference/scheduler/live_request.h"

namespace kvtier::engine {

struct BranchInput {
  LiveRequest* live = nullptr;
  Branch* branch = nullptr;
  std::uint32_t tokens = 0;             // the sequence's next ones, for which it has pages
  bool chooses = false;                 // a token is chosen after them
  std::shared_ptr<LoadTask> trusted{};  // whose blocks the step's layers wait for
  std::uint32_t told = 0;               // rows, the last ones, whose logits are asked about
  std::uint32_t begin = 0;              // the sequence's length before the step
  // The next token and what is proposed to come after it, as many as `tokens` says until it is
  // known how many were right; empty: nothing is proposed.
  std::vector<Token> fed{};
};

}  // namespace kvtier::engine
