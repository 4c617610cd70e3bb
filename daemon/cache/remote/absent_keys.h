// Keys that were not in the remote tier a moment ago: whoever asks for them again is spared the
// wait. Bounded in time and in number; what outgrows it is asked for again. Owned by the control
// thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <unordered_map>

#include "core/record/key_hash.h"

namespace kvtier::daemon {

class AbsentKeys {
 public:
  using Time = std::chrono::steady_clock::time_point;
  AbsentKeys(std::size_t most, std::chrono::milliseconds lasts) : most_(most), lasts_(lasts) {}

  void add(const Key& key, Time now) {
    expire(now);
    if (until_.size() >= most_ && !until_.contains(key)) drop_first();
    const Time until = now + lasts_;
    until_[key] = until;
    in_order_.emplace_back(until, key);
  }
  bool has(const Key& key, Time now) {
    expire(now);
    return until_.contains(key);
  }
  void forget(const Key& key) { until_.erase(key); }

 private:
  // Of a key that was added twice the last time counts.
  void drop_first() {
    while (!in_order_.empty()) {
      const auto [until, key] = in_order_.front();
      in_order_.pop_front();
      const auto known = until_.find(key);
      if (known == until_.end() || known->second != until) continue;
      until_.erase(known);
      return;
    }
  }
  void expire(Time now) {
    while (!in_order_.empty() && in_order_.front().first <= now) {
      const auto known = until_.find(in_order_.front().second);
      if (known != until_.end() && known->second == in_order_.front().first) until_.erase(known);
      in_order_.pop_front();
    }
    while (in_order_.size() > 2 * most_) drop_first();
  }

  std::size_t most_;
  std::chrono::milliseconds lasts_;
  std::unordered_map<Key, Time, KeyHash> until_;
  std::deque<std::pair<Time, Key>> in_order_;
};

}  // namespace kvtier::daemon
