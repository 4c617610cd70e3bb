// The requests of several copies of a trace, in the order of time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <vector>

#include "daemon/trace/trace_file.h"

namespace kvtier::bench {

struct Arrival {
  const daemon::TracedRequest* request = nullptr;
  std::uint32_t copy = 0;
  std::uint64_t at_ms = 0;
};

class Arrivals {
 public:
  // The trace outlives this. Of copies that ask at the same time the first goes first.
  Arrivals(const daemon::Trace& trace, std::uint32_t copies, double spread_seconds, double speed);
  // None after the last.
  std::optional<Arrival> next();

 private:
  struct Ahead {
    std::uint64_t at_ms = 0;
    std::uint32_t copy = 0;
    std::size_t index = 0;  // in the trace
    auto operator<=>(const Ahead&) const = default;
  };
  void push(std::uint32_t copy, std::size_t index);

  const daemon::Trace& trace_;
  double apart_ms_, speed_;
  std::priority_queue<Ahead, std::vector<Ahead>, std::greater<>> ahead_;
};

}  // namespace kvtier::bench
