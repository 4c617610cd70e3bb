#include "bench/serve/serve_search.h"

namespace kvtier::bench {
namespace {

// Down to a millionth of the start at a step of 1.15.
constexpr int kTrialsMax = 100;

}  // namespace

FoundRate find_rate(const SearchOptions& options, const std::function<bool(double rate)>& holds) {
  FoundRate found{.held = options.held};
  double rate = options.start;
  while (found.trials < kTrialsMax && rate <= options.most && Clock::now() < options.until) {
    ++found.trials;
    if (holds(rate)) {
      found.held = rate;
      if (found.missed > 0) break;
      rate *= options.step;
    } else {
      found.missed = rate;
      if (found.held > 0) break;
      rate /= options.step;
    }
  }
  return found;
}

}  // namespace kvtier::bench
