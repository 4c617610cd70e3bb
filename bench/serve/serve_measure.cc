#include "bench/serve/serve_measure.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "bench/serve/serve_pass.h"
#include "bench/serve/serve_search.h"
#include "bench/serve/serve_statistics.h"

namespace kvtier::bench {
namespace {

using Lane = ServeEngine::Lane;

// Fewer requests say nothing about a 99th percentile.
constexpr double kTrialRequestsMin = 16;
// A backlog that grows all the time shows within so many bounds.
constexpr double kTrialBounds = 4;
// The pass from an empty cache: so many questions a document.
constexpr std::size_t kColdQuestions = 8;
constexpr int kWarmingPassesMax = 4;
constexpr double kRatioWanted = 5;
// What a trial takes besides.
constexpr double kSpareS = 3;

enum class Mode { without_cache, with_cache };

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

std::string title_of(Mode mode) {
  return mode == Mode::without_cache ? ".without_cache" : ".with_cache";
}

class Measured {
 public:
  Measured(WorkloadKind kind, ServeEngine& engine, const ServeOptions& options, Report& report)
      : engine_(engine),
        options_(options),
        report_(report),
        workload_(make_workload(kind, engine, options)),
        name_(name(kind)),
        all_(workload_.sessions.size()) {
    std::fprintf(stderr, "%s\n", workload_.describe().c_str());
  }

  // Requests that share little beyond what they bring themselves: from an empty cache on.
  void measure_arrivals() {
    expect(false);
    double rate = 0;
    for (const Mode mode : {Mode::without_cache, Mode::with_cache}) {
      // The daemon's memory comes to be as it fills, and stays.
      if (mode == Mode::with_cache) pass(*lane(mode), mode, "not counted", saturating(all_));
      empty(mode);
      const Pass saturated = pass(*lane(mode), mode, "saturated", saturating(all_));
      add_saturated(mode, saturated);
      if (mode == Mode::without_cache) rate = rate_at_load(saturated);
      empty(mode);
      const Pass arriving = pass(*lane(mode), mode, "arriving", {.sessions = all_, .rate = rate});
      report_.add(name_ + title_of(mode) + ".offered", rate, "1/s");
      add_rows(report_, name_ + title_of(mode), summarise(arriving));
    }
    add_differences();
  }

  void measure_documents() {
    expect(true);
    auto alone = lane(Mode::without_cache);
    const double rate = rate_at_load(saturate_for_trial(*alone, Mode::without_cache));
    const double p99_ms = measure_at(*alone, Mode::without_cache, rate);
    const double bound_ms = options_.first_token_bound_ms.value_or(p99_ms);
    report_.add(name_ + ".first_token_p99_bound", bound_ms, "ms");
    const double step = SearchOptions{}.step;
    const bool known = p99_ms <= bound_ms;
    const FoundRate without = search(
        *alone, Mode::without_cache, bound_ms,
        {.held = known ? rate : 0, .start = known ? rate * step : rate / step, .most = 4 * rate});
    alone.reset();

    fill_cache();
    auto cached = lane(Mode::with_cache);
    const double capacity = summarise(saturate_for_trial(*cached, Mode::with_cache)).requests_per_s;
    measure_at(*cached, Mode::with_cache, rate);
    const FoundRate with = search(*cached, Mode::with_cache, bound_ms,
                                  {.start = options_.load * capacity, .most = 4 * capacity});
    if (without.held > 0 && with.held > 0) {
      report_.add(name_ + ".rate_ratio", with.held / without.held, "times", kRatioWanted);
    }
    if (without.missed > 0 && with.held > 0) {
      report_.add(name_ + ".rate_ratio_at_least", with.held / without.missed, "times");
    }
    add_differences();
  }

  std::size_t different() const noexcept { return different_[0] + different_[1]; }

 private:
  static Workload make_workload(WorkloadKind kind, const ServeEngine& engine,
                                const ServeOptions& options) {
    WorkloadShape shape = shape_of(kind, options.size);
    if (options.sessions) shape.sessions = *options.sessions;
    Workload workload = Workload::make(kind, shape, engine.vocabulary(), options.seed);
    if (workload.tokens_most() > engine.positions_max()) {
      throw std::runtime_error(std::string(name(kind)) + ": prompts of up to " +
                               std::to_string(workload.tokens_most()) +
                               " tokens, more than the model takes; choose a smaller --size");
    }
    return workload;
  }

  static PassOptions saturating(std::size_t sessions) { return {.sessions = sessions}; }

  std::unique_ptr<Lane> lane(Mode mode) {
    return mode == Mode::with_cache ? engine_.with_cache() : engine_.without_cache();
  }

  void empty(Mode mode) {
    if (mode == Mode::with_cache) engine_.empty_cache(prompt_of(0));
  }

  std::vector<Token> prompt_of(std::size_t session) const {
    std::vector<Token> prompt = workload_.prefixes[workload_.sessions[session].prefix];
    const auto& question = workload_.sessions[session].turns.front().question;
    prompt.insert(prompt.end(), question.begin(), question.end());
    return prompt;
  }

  Pass run(Lane& lane, const Workload& workload, const std::string& what, PassOptions options) {
    options.deadline = options_.deadline;
    Pass done = run_pass(lane.scheduler, workload, options);
    const Summary summary = summarise(done);
    std::fprintf(stderr,
                 "%s, %s: %zu of %zu requests in %.1f s, %.2f a second, first token p50 %.1f p99 "
                 "%.1f ms%s\n",
                 name_.c_str(), what.c_str(), summary.requests, workload.requests(options.sessions),
                 done.seconds, summary.requests_per_s, summary.first_token_p50_ms,
                 summary.first_token_p99_ms, done.given_up ? ", given up" : "");
    return done;
  }

  Pass pass(Lane& lane, Mode mode, const std::string& what, PassOptions options) {
    options.known = &expected_;
    Pass done = run(lane, workload_, title_of(mode).substr(1) + ", " + what, options);
    const auto at = static_cast<std::size_t>(mode);
    different_[at] += done.different;
    compared_[at] += done.served.size();
    return done;
  }

  // The answers that all others are held against, and the engine warm.
  void expect(bool by_prefix) {
    const auto lane = engine_.without_cache();
    expected_ = answers_of(
        run(*lane, workload_, "expected answers", {.sessions = all_, .by_prefix = by_prefix}),
        workload_);
  }

  double rate_at_load(const Pass& saturated) const {
    return options_.rate.value_or(options_.load * summarise(saturated).requests_per_s);
  }

  void add_saturated(Mode mode, const Pass& pass) {
    report_.add(name_ + title_of(mode) + ".saturated.requests_per_s",
                summarise(pass).requests_per_s, "1/s");
  }

  // --- Documents ---

  Pass saturate_for_trial(Lane& lane, Mode mode) {
    PassOptions options = saturating(all_);
    options.stop_after_s = options_.trial_s;
    Pass saturated = pass(lane, mode, "saturated", options);
    if (saturated.served.empty()) {
      throw std::runtime_error("no answer within " + std::to_string(options_.trial_s) +
                               " s: choose a longer --trial-seconds");
    }
    add_saturated(mode, saturated);
    return saturated;
  }

  std::size_t sessions_of(double rate, double seconds) const {
    const auto wanted =
        static_cast<std::size_t>(std::max(kTrialRequestsMin, std::round(rate * seconds)));
    return std::min(wanted, all_);
  }

  // Returns the 99th percentile of the first tokens.
  double measure_at(Lane& lane, Mode mode, double rate) {
    const Summary summary = summarise(pass(
        lane, mode, "arriving", {.sessions = sessions_of(rate, options_.trial_s), .rate = rate}));
    report_.add(name_ + title_of(mode) + ".offered", rate, "1/s");
    add_rows(report_, name_ + title_of(mode), summary);
    return summary.first_token_p99_ms;
  }

  FoundRate search(Lane& lane, Mode mode, double bound_ms, SearchOptions search) {
    const double seconds = std::max(options_.trial_s, kTrialBounds * bound_ms / 1e3);
    search.most =
        std::min(search.most, static_cast<double>(all_) / (kTrialBounds * bound_ms / 1e3));
    search.start = std::min(search.start, search.most);
    // No trial that would not come to its end.
    search.until = std::min(Clock::now() + duration_of(options_.search_s),
                            options_.deadline - duration_of(seconds + bound_ms / 1e3 + kSpareS));
    std::optional<Summary> best;
    const FoundRate found = find_rate(search, [&](double rate) {
      char what[64];
      std::snprintf(what, sizeof what, "%.2f requests a second", rate);
      const Pass trial = pass(lane, mode, what,
                              {.sessions = sessions_of(rate, seconds),
                               .rate = rate,
                               .first_token_bound_s = bound_ms / 1e3});
      if (!trial.given_up) best = summarise(trial);
      return !trial.given_up;
    });
    const std::string title = name_ + title_of(mode);
    report_.add(title + ".rate_held", found.held, "1/s");
    if (found.missed > 0) report_.add(title + ".rate_missed", found.missed, "1/s");
    if (best) add_rows(report_, title + ".rate_held", *best);
    return found;
  }

  // From an empty cache until every document is in it.
  void fill_cache() {
    Workload documents;
    documents.kind = workload_.kind;
    documents.prefixes = workload_.prefixes;
    for (std::uint32_t i = 0; i < workload_.prefixes.size(); ++i) {
      documents.sessions.push_back({i + 1.0, i, {{{0}, 1, 0}}});
    }
    {
      const auto cold = lane(Mode::with_cache);
      empty(Mode::with_cache);
      const std::size_t sessions = std::min(all_, kColdQuestions * workload_.prefixes.size());
      const Pass first = pass(*cold, Mode::with_cache, "from cold", saturating(sessions));
      add_rows(report_, name_ + ".with_cache.from_cold", summarise(first));
    }
    engine_.flush();
    for (int i = 0; i < kWarmingPassesMax && share_cached() < 1; ++i) {
      run(*lane(Mode::with_cache), documents, "documents", saturating(documents.sessions.size()));
      engine_.flush();
    }
    report_.add(name_ + ".cached_beforehand", 100 * share_cached(), "%");
  }

  double share_cached() const {
    double cached = 0;
    double all = 0;
    for (const auto& prefix : workload_.prefixes) {
      std::vector<Token> prompt = prefix;
      prompt.push_back(0);
      cached += engine_.blocks_cached(prompt);
      const std::size_t whole_blocks = prefix.size() / kBlockTokens;
      all += static_cast<double>(whole_blocks);
    }
    return cached / all;
  }

  void add_differences() {
    for (const Mode mode : {Mode::without_cache, Mode::with_cache}) {
      const auto at = static_cast<std::size_t>(mode);
      report_.add(name_ + title_of(mode) + ".answers_compared", static_cast<double>(compared_[at]),
                  "count");
      report_.add(name_ + title_of(mode) + ".answers_different",
                  static_cast<double>(different_[at]), "count");
    }
  }

  ServeEngine& engine_;
  const ServeOptions& options_;
  Report& report_;
  const Workload workload_;
  const std::string name_;
  const std::size_t all_;  // sessions
  Answers expected_;
  std::size_t different_[2] = {0, 0};
  std::size_t compared_[2] = {0, 0};
};

}  // namespace

void ServeMeasurement::measure(WorkloadKind kind) {
  Measured measured(kind, engine_, options_, report_);
  if (kind == WorkloadKind::document_qa) {
    measured.measure_documents();
  } else {
    measured.measure_arrivals();
  }
  different_ += measured.different();
}

}  // namespace kvtier::bench
