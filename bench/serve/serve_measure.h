// The measurements of kvtier-serve-bench. Everything runs once without and once with the cache, on
// the same engine with the same requests at the same times; each answer is compared with the one
// that a first pass without a cache gave.
#pragma once

#include <cstddef>
#include <optional>

#include "bench/serve/serve_engine.h"
#include "bench/serve/serve_workload.h"
#include "bench/support/report.h"

namespace kvtier::bench {

struct ServeOptions {
  WorkloadSize size = WorkloadSize::small;
  std::uint64_t seed = 1;
  std::optional<std::uint32_t> sessions;       // in place of the shape's
  std::optional<double> rate;                  // requests per second, for the latencies
  double load = 0.7;                           // without a rate: of what the engine alone can do
  std::optional<double> first_token_bound_ms;  // of the search; else as measured at that rate
  double trial_s = 15;                         // of each rate that the search tries, at least
  double search_s = 120;                       // no trial begins later, of either search
  Clock::time_point deadline;                  // it fails then, with the rows so far
};

class ServeMeasurement {
 public:
  // All outlive it.
  ServeMeasurement(ServeEngine& engine, const ServeOptions& options, Report& report)
      : engine_(engine), options_(options), report_(report) {}

  // Adds rows. Throws std::runtime_error.
  void measure(WorkloadKind kind);

  // Answers that were not the expected ones.
  std::size_t different() const noexcept { return different_; }

 private:
  ServeEngine& engine_;
  const ServeOptions& options_;
  Report& report_;
  std::size_t different_ = 0;
};

}  // namespace kvtier::bench
