#include "daemon/cache/policy/write_budget.h"

#include <algorithm>

namespace kvtier::daemon {
namespace {

// Of the threshold, and of the sums, at each step. Steps of 1.01 follow too slowly what comes in an
// hour, and with steps of 1.05, or with sums of minutes, the threshold swings from one class of
// blocks to the next.
constexpr double kStep = 1.025;
constexpr double kKept = 0.95;

}  // namespace

void WriteBudget::step() noexcept {
  if (allowed_ <= 0 && written_ <= 0) return;
  threshold_ = written_ > allowed_ ? std::min(kChanceMax, threshold_ * kStep)
                                   : std::max(kChanceMin, threshold_ / kStep);
  written_ *= kKept;
  allowed_ *= kKept;
}

}  // namespace kvtier::daemon
