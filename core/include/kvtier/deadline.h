// Until when somebody waits.
#pragma once

#include <chrono>

namespace kvtier {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

}  // namespace kvtier
