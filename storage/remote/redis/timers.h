// What is to happen at a time. For one thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "kvtier/deadline.h"

namespace kvtier::storage {

class Timers {
 public:
  using Queue = std::multimap<Deadline, std::function<void()>>;
  using Id = Queue::iterator;

  Id add(Deadline at, std::function<void()> what) { return queue_.emplace(at, std::move(what)); }
  // Of one that has not come yet.
  void cancel(std::optional<Id>& id) {
    if (id) queue_.erase(*id);
    id.reset();
  }
  // One that is due, taken out; what it is must not cancel itself.
  std::function<void()> take_due(Clock::time_point now) {
    if (queue_.empty() || queue_.begin()->first > now) return {};
    auto what = std::move(queue_.begin()->second);
    queue_.erase(queue_.begin());
    return what;
  }
  std::optional<Deadline> next() const {
    if (queue_.empty()) return std::nullopt;
    return queue_.begin()->first;
  }

 private:
  Queue queue_;
};

}  // namespace kvtier::storage
