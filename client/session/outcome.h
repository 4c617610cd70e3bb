// What a caller waits for while the session thread works on it. Set once; a caller that gives up
// says so, and then set() tells the session thread that nobody will take the result.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>

#include "kvtier/client.h"

namespace kvtier::session {

class Outcome {
 public:
  // False if it was set before or its caller has given up.
  bool set(Result<void> result) {
    const std::lock_guard lock(mutex_);
    if (abandoned_ || result_) return false;
    result_ = std::move(result);
    changed_.notify_all();
    return true;
  }

  // Empty when the deadline passed first; from then on nobody waits.
  std::optional<Result<void>> wait(Deadline deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return result_.has_value(); });
    if (!result_) abandoned_ = true;
    return result_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Result<void>> result_;
  bool abandoned_ = false;
};

}  // namespace kvtier::session
