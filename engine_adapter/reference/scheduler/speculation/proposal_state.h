// What is remembered of one answer to propose its next tokens.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "engine_adapter/reference/model/sequence.h"
#include "engine_adapter/reference/scheduler/speculation/ngrams.h"

namespace kvtier::engine {

struct ProposalState {
  Ngrams ngrams;
  // What the draft model has of the tokens from `drafted_from` on, and of what it proposed last.
  std::unique_ptr<Sequence> drafted;
  std::uint32_t drafted_from = 0;
  // So many are worth a try: fewer after some were wrong, more after all were right.
  std::uint32_t worth = std::numeric_limits<std::uint32_t>::max();
};

}  // namespace kvtier::engine
