// How much has been written in the last day, from a counter that is looked at about once a second:
// drive wear as an operator asks for it. Keeps one sample an hour.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>

namespace kvtier::daemon {

class WriteRate {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `bytes`: written so far, never less than before.
  void note(Time now, std::uint64_t bytes) {
    if (samples_.empty() || now - samples_.back().at >= kEvery) samples_.push_back({now, bytes});
    // The oldest is the last one that is a day old, or the first of all.
    while (samples_.size() > 1 && now - samples_[1].at >= kDay) samples_.pop_front();
    latest_ = {now, bytes};
  }

  std::uint64_t bytes_per_day() const noexcept {
    if (samples_.empty() || latest_.at == samples_.front().at) return 0;
    const std::chrono::duration<double> time = latest_.at - samples_.front().at;
    const auto bytes = static_cast<double>(latest_.bytes - samples_.front().bytes);
    return static_cast<std::uint64_t>(bytes * std::chrono::duration<double>(kDay).count() /
                                      time.count());
  }

 private:
  static constexpr std::chrono::hours kEvery{1};
  static constexpr std::chrono::hours kDay{24};
  struct Sample {
    Time at{};
    std::uint64_t bytes = 0;
  };
  std::deque<Sample> samples_;  // at most 26
  Sample latest_;
};

}  // namespace kvtier::daemon
