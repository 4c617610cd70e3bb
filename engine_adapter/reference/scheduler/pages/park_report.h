// Tells people that requests are parked for want of pages: with the first, and then at most every
// ten seconds, how many since. One thread: the scheduler's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine_adapter/reference/scheduler/scheduler_metrics.h"
#include "kvtier/deadline.h"

namespace kvtier::engine {

class ParkReport {
 public:
  static constexpr std::chrono::seconds kEvery{10};
  // Null: nobody is told.
  explicit ParkReport(std::function<void(const std::string&)> tell) : tell_(std::move(tell)) {}

  void look(const SchedulerMetrics& metrics, Clock::time_point now) {
    const std::uint64_t parked = metrics.parked_for[index_of(ParkedFor::pages)];
    if (!tell_ || parked == told_ || now < next_) return;
    tell_(std::to_string(parked - told_) + " requests gave up their pages to others, since all " +
          std::to_string(metrics.pages) + " are in use, " + std::to_string(metrics.running) +
          " requests have some and " + std::to_string(metrics.waiting + metrics.parked) +
          " wait: raise --pool-tokens, or lower --running-max");
    told_ = parked;
    next_ = now + kEvery;
  }

 private:
  const std::function<void(const std::string&)> tell_;
  std::uint64_t told_ = 0;
  Clock::time_point next_{};
};

}  // namespace kvtier::engine
