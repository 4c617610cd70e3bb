// How much longer one request waits for the cache. It waits its deadline in all, over everything it
// asks, for as long as nothing comes; what comes begins the count anew, so that a slow cache is not
// taken for a dead one. Once that time is over the request asks nothing more and computes.
//
// One thread: the engine's.
#pragma once

#include <algorithm>

#include "kvtier/client.h"

namespace kvtier::engine {

class CacheWait {
 public:
  CacheWait() = default;
  explicit CacheWait(Clock::duration longest) : longest_(longest), left_(longest) {}

  bool over() const noexcept { return left_ <= Clock::duration::zero(); }
  Clock::duration left() const noexcept { return left_; }
  Clock::duration longest() const noexcept { return longest_; }
  // For what is asked now.
  Deadline deadline(Clock::time_point now) const noexcept { return now + left_; }

  // So long was waited for nothing.
  void spend(Clock::duration waited) noexcept {
    left_ = std::max(left_ - waited, Clock::duration::zero());
  }
  void give_up() noexcept { left_ = Clock::duration::zero(); }
  // Something came in time.
  void news() noexcept {
    if (!over()) left_ = longest_;
  }

 private:
  Clock::duration longest_{};
  Clock::duration left_{};
};

}  // namespace kvtier::engine
