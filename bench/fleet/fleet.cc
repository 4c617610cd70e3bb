#include "bench/fleet/fleet.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "bench/fleet/arrivals.h"
#include "bench/fleet/router.h"
#include "bench/fleet/shared_store.h"
#include "bench/support/report.h"
#include "core/base/check.h"
#include "daemon/trace/replay_cache.h"

namespace kvtier::bench {
namespace {

using daemon::ReplayCache;

// How unevenly hosts compute, over all of the time and within each minute.
class Balance {
 public:
  explicit Balance(std::uint32_t hosts) : all_(hosts), of_minute_(hosts) {}

  void computed(std::uint32_t host, std::uint64_t blocks, double at_s) {
    const auto minute = static_cast<std::uint64_t>(at_s / 60);
    if (minute != minute_) end_minute();
    minute_ = minute;
    all_[host] += blocks;
    of_minute_[host] += blocks;
  }
  double overall() const { return most_over_mean(all_); }
  double median_minute() {
    end_minute();
    return minutes_.empty() ? 1 : median(minutes_);
  }

 private:
  static double most_over_mean(const std::vector<std::uint64_t>& blocks) {
    const auto sum = std::accumulate(blocks.begin(), blocks.end(), std::uint64_t{0});
    if (sum == 0) return 1;
    return static_cast<double>(*std::ranges::max_element(blocks)) *
           static_cast<double>(blocks.size()) / static_cast<double>(sum);
  }
  void end_minute() {
    if (std::ranges::all_of(of_minute_, [](std::uint64_t blocks) { return blocks == 0; })) return;
    minutes_.push_back(most_over_mean(of_minute_));
    std::ranges::fill(of_minute_, 0U);
  }

  std::vector<std::uint64_t> all_, of_minute_;
  std::uint64_t minute_ = 0;
  std::vector<double> minutes_;
};

class Fleet {
 public:
  Fleet(const daemon::Trace& trace, const FleetOptions& options, const FleetCase& fleet)
      : trace_(trace),
        options_(options),
        router_(options, fleet.routing),
        store_(fleet.remote_blocks),
        shared_(fleet.remote_blocks > 0),
        balance_(options.hosts) {
    first_tokens_.reserve(trace.requests.size() * options.copies);
  }

  Result<void> create(const FleetCase& fleet) {
    const daemon::ReplayOptions each{.policy = fleet.policy,
                                     .host_blocks = options_.host_blocks,
                                     .disk_blocks = options_.disk_blocks,
                                     .admission = options_.disk_admission,
                                     .answers_told = options_.answers};
    for (std::uint32_t host = 0; host < options_.hosts; ++host) {
      auto cache = ReplayCache::create(trace_, each);
      if (!cache) return cache.error();
      if (router_.follows_blocks()) {
        (*cache)->on_block(
            [this, host](const Key& key, bool there) { router_.view().told(host, key, there); });
      }
      caches_.push_back(std::move(*cache));
      times_.emplace_back(options_.rates, fleet.network_bytes_per_s, options_.block_bytes,
                          trace_.block_tokens, first_tokens_);
    }
    return {};
  }

  FleetFigures run() {
    Arrivals arrivals(trace_, options_.copies, options_.spread_seconds, options_.speed);
    while (const auto arrival = arrivals.next()) request(*arrival);
    return figures();
  }

 private:
  void request(const Arrival& arrival) {
    const double at_s = static_cast<double>(arrival.at_ms) / 1e3;
    caches_.front()->set_keys(*arrival.request, arrival.copy, keys_);
    const std::uint32_t host = router_.pick(keys_, at_s);
    LookedUp found = look_up(host, arrival);
    const std::uint64_t local = found.host_blocks + found.disk_blocks;
    found.remote_blocks = shared_ ? store_.find(std::span(keys_).subspan(local)) : 0;
    found.asked_remote = shared_ && local < keys_.size();
    const Loaded loaded = times_[host].arrive(found, lines_);
    if (shared_) share(host, local, found.remote_blocks, at_s, loaded.computed_in_s);

    const std::uint64_t instead =
        found.disk_blocks - loaded.disk_blocks + found.remote_blocks - loaded.remote_blocks;
    const std::uint64_t computed = keys_.size() - local - found.remote_blocks + instead;
    router_.computed(host, computed);
    balance_.computed(host, computed, at_s);
    ++figures_.requests;
    figures_.blocks += keys_.size();
    figures_.host_hits += found.host_blocks;
    figures_.disk_hits += found.disk_blocks;
    figures_.remote_hits += found.remote_blocks;
    figures_.computed_instead += instead;
    figures_.read_from_remote += loaded.remote_blocks;
  }

  // What the host has itself. From now on it has all of the prompt, as far as there is room.
  LookedUp look_up(std::uint32_t host, const Arrival& arrival) {
    const daemon::Replayed before = caches_[host]->replayed();
    caches_[host]->request(keys_, arrival.request->output_tokens, arrival.at_ms);
    const daemon::Replayed& after = caches_[host]->replayed();
    const auto hits = [&](Tier tier) {
      return after.hits[index_of(tier)] - before.hits[index_of(tier)];
    };
    return {.at_s = static_cast<double>(arrival.at_ms) / 1e3,
            .prompt_tokens = arrival.request->input_tokens,
            .host_blocks = hits(Tier::host),
            .disk_blocks = hits(Tier::disk)};
  }

  // A block is written behind the one before it alone: else it would be of no use there. What is
  // computed comes within `computed_in_s`; what the host has is there.
  void share(std::uint32_t host, std::uint64_t local, std::uint64_t remote, double at_s,
             double computed_in_s) {
    const std::span<const Key> keys(keys_);
    if (options_.remote_admission == RemoteAdmission::all) {
      const std::uint64_t fresh = keys.size() - local - remote;
      const std::uint64_t written = write(host, fresh, at_s, computed_in_s);
      return store_.use(keys.subspan(local, remote + written));
    }
    store_.use(keys.subspan(local, remote));
    const std::uint64_t there = store_.find(keys.first(local));
    const std::uint64_t written = write(host, local - there, at_s, 0);
    store_.use(keys.subspan(there, written));
  }
  std::uint64_t write(std::uint32_t host, std::uint64_t blocks, double at_s, double over_s) {
    const std::uint64_t written = times_[host].write(at_s, blocks, over_s, lines_);
    figures_.written_to_remote += written;
    figures_.dropped_writes += blocks - written;
    return written;
  }

  FleetFigures figures() {
    double busy = 0, end = 0;
    for (HostTime& time : times_) {
      end = std::max(end, time.finish());
      busy += time.busy_s();
    }
    for (const auto& cache : caches_) figures_.written_to_disk += cache->replayed().written;
    KVTIER_CHECK(first_tokens_.size() == figures_.requests);
    const double begin = static_cast<double>(trace_.requests.front().at_ms) / 1e3 / options_.speed;
    figures_.busy = busy / options_.hosts / (end - begin);
    figures_.imbalance = balance_.overall();
    figures_.minute_imbalance = balance_.median_minute();
    figures_.first_token_p50_s = median(first_tokens_);
    figures_.first_token_p99_s = percentile(first_tokens_, 0.99);
    figures_.first_token_mean_s = std::accumulate(first_tokens_.begin(), first_tokens_.end(), 0.0) /
                                  static_cast<double>(first_tokens_.size());
    return figures_;
  }

  const daemon::Trace& trace_;
  const FleetOptions& options_;
  Router router_;
  SharedStore store_;
  bool shared_;
  Balance balance_;
  StoreLines lines_;
  std::vector<double> first_tokens_;
  std::vector<std::unique_ptr<ReplayCache>> caches_;
  std::vector<HostTime> times_;
  FleetFigures figures_;
  std::vector<Key> keys_;
};

}  // namespace

Result<FleetFigures> simulate(const daemon::Trace& trace, const FleetOptions& options,
                              const FleetCase& fleet) {
  Fleet simulated(trace, options, fleet);
  if (auto good = simulated.create(fleet); !good) return good.error();
  return simulated.run();
}

}  // namespace kvtier::bench
