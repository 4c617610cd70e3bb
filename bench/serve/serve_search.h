// The highest rate that holds a bound.
#pragma once

#include <functional>

#include "kvtier/client.h"

namespace kvtier::bench {

struct FoundRate {
  double held = 0;    // the highest rate that held; 0: none did
  double missed = 0;  // the lowest above it that did not; 0: none was tried
  int trials = 0;
};

struct SearchOptions {
  double held = 0;            // a rate known to hold; 0: none is
  double start = 1;           // the first rate that is tried, above `held`
  double step = 1.15;         // between neighbouring rates; above 1
  double most = 2;            // no rate above it is tried
  Clock::time_point until{};  // no trial begins after it
};

// From the start up to the first rate that does not hold, or, where the start does not hold and
// none is known to, down to the first that does.
FoundRate find_rate(const SearchOptions& options, const std::function<bool(double rate)>& holds);

}  // namespace kvtier::bench
