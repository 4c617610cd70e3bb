// One pass of a workload through a scheduler: submits each request when it is due and notes when
// its tokens come. Times are counted from when a request was due, so that a driver or an engine
// that falls behind does not make its own latencies look shorter.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "bench/serve/serve_workload.h"
#include "engine_adapter/reference/scheduler/scheduler.h"

namespace kvtier::bench {

// By session and turn.
using Answers = std::vector<std::vector<std::vector<Token>>>;

struct PassOptions {
  // Of the workload, the first so many sessions.
  std::size_t sessions = 1;
  // Requests per second: arrivals are stretched so that the last session comes at requests / rate.
  // 0: all sessions at once and no think time, which saturates the engine.
  double rate = 0;
  // With rate 0: requests of one prefix follow one another.
  bool by_prefix = false;
  // Ends as soon as the 99th percentile of the first tokens is certain to be above this.
  std::optional<double> first_token_bound_s = std::nullopt;
  // Ends then; what is not finished does not count.
  std::optional<double> stop_after_s = std::nullopt;
  // Beyond it the pass fails.
  Clock::time_point deadline{};
  // What was answered before: earlier turns of a session have these answers, whatever comes now.
  // Null: the answers of this pass. Has an answer for every request of the pass.
  const Answers* known = nullptr;
};

// A request that was answered. Seconds since the pass began.
struct Served {
  std::uint32_t session = 0;
  std::uint32_t turn = 0;
  double due_s = 0;
  std::vector<double> token_s;  // one a token
  double ended_s = 0;
  std::vector<Token> answer;
  engine::Usage usage;
};

struct Pass {
  std::vector<Served> served;  // as they ended
  double seconds = 0;          // until the last answer that counts, or the stop
  bool given_up = false;       // for the bound on the first token
  std::size_t different = 0;   // answers that are not the known ones
};

// The caller is the driver: returns once every request has ended, or been cancelled. Throws
// std::runtime_error: a request failed or was refused, the deadline is over.
Pass run_pass(engine::Scheduler& scheduler, const Workload& workload, const PassOptions& options);

// `sessions` answers that are empty.
Answers answers_of(const Pass& pass, const Workload& workload);

}  // namespace kvtier::bench
