#include "bench/serve/serve_batching.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <thread>

#include "bench/serve/serve_pass.h"
#include "bench/serve/serve_statistics.h"

namespace kvtier::bench {
namespace {

using namespace std::chrono_literals;

constexpr auto kLookInterval = 2ms;

struct Way {
  const char* name;
  const char* memory;
  const char* batches;
  bool whole;  // memory for the longest context
  bool apart;
  bool fixed;
};

constexpr Way kWays[] = {
    {"contiguous_fixed", "longest context", "fixed", true, true, true},
    {"contiguous", "longest context", "continuous", true, true, false},
    {"pages", "pages", "continuous", false, true, false},
    {"pages_shared_fixed", "shared pages", "fixed", false, false, true},
    {"pages_shared", "shared pages", "continuous", false, false, false},
};

// What a pass took of the pool while there were requests, in the mean over time.
struct Use {
  double running = 0;
  double places = 0;  // for tokens, that are some request's
  double tokens = 0;  // of requests, each its own: more than places where they share
  std::uint64_t looks = 0;

  void look(const engine::SchedulerMetrics& metrics, std::uint64_t places_of_one) {
    if (metrics.running == 0) return;
    const double in_pages = static_cast<double>(metrics.pages_used) * kBlockTokens;
    ++looks;
    running += metrics.running;
    tokens += static_cast<double>(metrics.tokens_held);
    places += places_of_one != 0
                  ? std::max(in_pages, static_cast<double>(metrics.running * places_of_one))
                  : in_pages;
  }
  double running_mean() const { return looks == 0 ? 0 : running / static_cast<double>(looks); }
  double tokens_a_place() const { return places == 0 ? 0 : tokens / places; }
};

struct Outcome {
  Way way{};
  Summary summary;
  Use use;
  engine::SchedulerMetrics metrics;
  double answer_tokens_per_s = 0;
  std::size_t different = 0;
};

Outcome run(const Way& way, ServeEngine& engine, const Workload& workload,
            const ServeOptions& options, std::uint32_t longest, std::optional<Answers>& known) {
  engine::SchedulerOptions scheduling = engine.scheduler_options();
  scheduling.earlier = {
      .reserved_tokens = way.whole ? longest : 0, .apart = way.apart, .fixed_batches = way.fixed};
  scheduling.keep_pages = !way.apart;
  const auto lane = engine.lane(scheduling);
  Outcome outcome;
  outcome.way = way;
  Pass pass;
  {
    std::jthread looks([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        outcome.use.look(lane->scheduler.metrics(), way.whole ? longest : 0);
        std::this_thread::sleep_for(kLookInterval);
      }
    });
    pass = run_pass(lane->scheduler, workload,
                    {.sessions = workload.sessions.size(),
                     .deadline = options.deadline,
                     .known = known ? &*known : nullptr});
  }
  outcome.metrics = lane->scheduler.metrics();
  outcome.summary = summarise(pass);
  std::size_t tokens = 0;
  for (const Served& served : pass.served) tokens += served.answer.size();
  outcome.answer_tokens_per_s = static_cast<double>(tokens) / pass.seconds;
  outcome.different = pass.different;
  if (!known) known = answers_of(pass, workload);
  return outcome;
}

void add(Report& report, const std::string& title, const Outcome& outcome) {
  const std::string name = title + "." + outcome.way.name;
  report.add(name + ".requests_at_once", outcome.metrics.running_most, "count");
  report.add(name + ".requests_mean", outcome.use.running_mean(), "count");
  report.add(name + ".tokens_a_place", outcome.use.tokens_a_place(), "");
  report.add(name + ".requests_per_s", outcome.summary.requests_per_s, "1/s");
  report.add(name + ".answer_tokens_per_s", outcome.answer_tokens_per_s, "1/s");
  report.add(name + ".first_token_p50", outcome.summary.first_token_p50_ms, "ms");
  report.add(name + ".inter_token_p99", outcome.summary.inter_token_p99_ms, "ms");
  report.add(name + ".parked", static_cast<double>(outcome.metrics.preemptions), "count");
  report.add(name + ".answers_different", static_cast<double>(outcome.different), "count");
}

std::string line(const Outcome& outcome) {
  char text[160];
  std::snprintf(text, sizeof text, "%-17s%-12s%9u%9.1f%14.2f%12.2f%11.0f%10.0f ms\n",
                outcome.way.memory, outcome.way.batches, outcome.metrics.running_most,
                outcome.use.running_mean(), outcome.use.tokens_a_place(),
                outcome.summary.requests_per_s, outcome.answer_tokens_per_s,
                outcome.summary.first_token_p50_ms);
  return text;
}

}  // namespace

std::size_t measure_batching(WorkloadKind kind, ServeEngine& engine, const ServeOptions& options,
                             std::uint32_t longest_context, Report& report) {
  WorkloadShape shape = shape_of(kind, options.size);
  if (options.sessions) shape.sessions = *options.sessions;
  const Workload workload = Workload::make(kind, shape, engine.vocabulary(), options.seed);
  const std::uint32_t longest = longest_context != 0 ? longest_context : engine.positions_max();
  if (workload.tokens_most() > longest) {
    throw std::runtime_error(std::string(name(kind)) + ": prompts and answers of up to " +
                             std::to_string(workload.tokens_most()) +
                             " tokens, the longest context has " + std::to_string(longest) +
                             "; choose a smaller --size or a longer one");
  }
  std::fprintf(stderr, "%s\n", workload.describe().c_str());
  const std::string title = std::string(name(kind)) + ".batching";
  report.add(title + ".pool_tokens", engine.pool_tokens(), "count");
  report.add(title + ".longest_context", longest, "count");
  std::string table =
      "memory           batches       at once     mean  tokens/place  requests/s"
      "   tokens/s  first token\n";
  std::optional<Answers> known;
  std::size_t different = 0;
  // Once before, for what is made at first use.
  run(kWays[std::size(kWays) - 1], engine, workload, options, longest, known);
  for (const Way& way : kWays) {
    const Outcome outcome = run(way, engine, workload, options, longest, known);
    add(report, title, outcome);
    table += line(outcome);
    different += outcome.different;
  }
  report.show_instead(table);
  return different;
}

}  // namespace kvtier::bench
