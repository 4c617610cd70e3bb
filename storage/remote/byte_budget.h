// So many bytes a second, with up to a second's saved. A transfer may begin while anything is left,
// so that records larger than a second's share pass too; the next ones then wait for what it took.
// For one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "kvtier/deadline.h"

namespace kvtier::storage {

class ByteBudget {
 public:
  // 0: no bound. Begins full.
  ByteBudget(std::uint64_t bytes_per_s, Clock::time_point now)
      : rate_(static_cast<double>(bytes_per_s)), left_(rate_), at_(now) {}

  // False: over the budget, nothing was taken.
  bool take(std::uint64_t bytes, Clock::time_point now) noexcept {
    if (rate_ == 0) return true;
    left_ = std::min(rate_, left_ + rate_ * std::chrono::duration<double>(now - at_).count());
    at_ = now;
    if (left_ <= 0) return false;
    left_ -= static_cast<double>(bytes);
    return true;
  }

 private:
  double rate_;
  double left_;  // below 0: owed
  Clock::time_point at_;
};

}  // namespace kvtier::storage
