// What is remembered of one answer to propose its next tokens.
#pragma once

#include <cstdint>
#include <limits>

#include "engine_adapter/reference/scheduler/speculation/ngrams.h"

namespace kvtier::engine {

struct ProposalState {
  Ngrams ngrams;
  // So many are worth a try: fewer after some were wrong, more after all were right.
  std::uint32_t worth = std::numeric_limits<std::uint32_t>::max();
};

}  // namespace kvtier::engine
