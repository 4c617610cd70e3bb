#include "bench/fleet/arrivals.h"

namespace kvtier::bench {

Arrivals::Arrivals(const daemon::Trace& trace, std::uint32_t copies, double spread_seconds,
                   double speed)
    : trace_(trace), apart_ms_(1e3 * spread_seconds / copies), speed_(speed) {
  for (std::uint32_t copy = 0; copy < copies; ++copy) push(copy, 0);
}

std::optional<Arrival> Arrivals::next() {
  if (ahead_.empty()) return std::nullopt;
  const Ahead first = ahead_.top();
  ahead_.pop();
  push(first.copy, first.index + 1);
  return Arrival{&trace_.requests[first.index], first.copy, first.at_ms};
}

void Arrivals::push(std::uint32_t copy, std::size_t index) {
  if (index == trace_.requests.size()) return;
  const double at_ms =
      static_cast<double>(trace_.requests[index].at_ms) / speed_ + copy * apart_ms_;
  ahead_.push({static_cast<std::uint64_t>(at_ms), copy, index});
}

}  // namespace kvtier::bench
