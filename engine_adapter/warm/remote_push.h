// Has the daemon beside the engine write to its remote tier what a run has warmed.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "kvtier/result.h"

namespace kvtier::warm {

struct Pushed {
  std::uint64_t blocks = 0;  // of those that came or were used, that are there now
  std::uint64_t left = 0;    // and that are not
};

// What came or was used within this time, of whatever namespaces. The engine may still be writing
// back what it computed last, so it is asked for until no more comes. Errors: those of the daemon
// (refused: no administrator, or no remote tier), unavailable, deadline.
Result<Pushed> push_to_remote(const std::string& socket, std::chrono::milliseconds within);

}  // namespace kvtier::warm
