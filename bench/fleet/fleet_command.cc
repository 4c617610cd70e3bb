#include "bench/fleet/fleet_command.h"

#include <sys/resource.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <optional>
#include <thread>

#include "bench/support/policy_names.h"
#include "bench/support/records.h"
#include "bench/tiers/commands.h"
#include "core/terminal/table.h"
#include "core/terminal/units.h"

namespace kvtier::bench {
namespace {

struct Simulated {
  FleetCase fleet;
  FleetFigures figures;
};

std::string formatted(const char* format, double value) {
  char out[32];
  std::snprintf(out, sizeof out, format, value);
  return out;
}

std::vector<FleetCase> cases_of(const FleetRun& run) {
  std::vector<FleetCase> cases;
  for (const auto policy : run.policies) {
    for (const Routing routing : run.routings) {
      for (const std::uint64_t blocks : run.remote_blocks) {
        for (const double rate : run.network_bytes_per_s) {
          if (blocks == 0 && rate != run.network_bytes_per_s.front()) continue;
          cases.push_back({policy, routing, blocks, rate});
        }
      }
    }
  }
  return cases;
}

// Each host's index has a descriptor, as in a daemon.
void have_descriptors(std::uint64_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  if (limit.rlim_max < wanted) {
    throw std::runtime_error("so many hosts at once take " + std::to_string(wanted) +
                             " descriptors, and a process may have " +
                             std::to_string(limit.rlim_max) +
                             ": raise the hard limit (ulimit -Hn), or give fewer --threads");
  }
  limit.rlim_cur = wanted;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0)
    throw std::runtime_error("the limit of descriptors cannot be raised to " +
                             std::to_string(wanted) + ": give fewer --hosts");
}

// All cases, each on one of the threads; in their order.
std::vector<Simulated> simulate_all(const daemon::Trace& trace, const FleetOptions& options,
                                    const std::vector<FleetCase>& cases, std::uint32_t threads) {
  std::vector<std::optional<Result<FleetFigures>>> results(cases.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t at = next++; at < cases.size(); at = next++)
      results[at] = simulate(trace, options, cases[at]);
  };
  {
    std::vector<std::jthread> others;
    for (std::uint32_t i = 1; i < std::min<std::size_t>(threads, cases.size()); ++i)
      others.emplace_back(work);
    work();
  }
  std::vector<Simulated> all;
  for (std::size_t at = 0; at < cases.size(); ++at)
    all.push_back({cases[at], need(std::move(*results[at]))});
  return all;
}

// What a row is called behind the name of its figure.
std::string fleet_suffix(const FleetCase& fleet) {
  const std::string of = "." + name(fleet.policy) + "." + name(fleet.routing);
  if (fleet.remote_blocks == 0) return of + ".alone";
  return of + ".remote." + std::to_string(fleet.remote_blocks) + "." +
         formatted("%g", fleet.network_bytes_per_s / 1e9);
}

// Beside the same fleet without a shared store, where that was simulated too.
class FleetRows {
 public:
  FleetRows(std::uint64_t block_bytes, Report& report)
      : block_bytes_(static_cast<double>(block_bytes)), report_(report) {}

  void add(const Simulated& of) {
    const FleetFigures& f = of.figures;
    add(of, "hit_share", f.share(f.all_hits()), "share");
    add(of, "hit_share_host", f.share(f.host_hits), "share");
    if (f.disk_hits + f.written_to_disk > 0)
      add(of, "hit_share_disk", f.share(f.disk_hits), "share");
    if (of.fleet.remote_blocks > 0) {
      add(of, "hit_share_remote", f.share(f.remote_hits), "share");
      add(of, "network_read", static_cast<double>(f.read_from_remote) * block_bytes_, "B");
      add(of, "network_written", static_cast<double>(f.written_to_remote) * block_bytes_, "B");
      add(of, "writes_dropped", static_cast<double>(f.dropped_writes) * block_bytes_, "B");
    }
    if (f.disk_hits + f.remote_hits > 0)
      add(of, "computed_instead", f.share(f.computed_instead), "share");
    add(of, "imbalance", f.imbalance, "");
    add(of, "imbalance_minute", f.minute_imbalance, "");
    add(of, "busy", f.busy, "share");
    add(of, "first_token_p50", 1e3 * f.first_token_p50_s, "ms");
    add(of, "first_token_p99", 1e3 * f.first_token_p99_s, "ms");
    add(of, "first_token_mean", 1e3 * f.first_token_mean_s, "ms");
    if (f.written_to_disk > 0)
      add(of, "disk_written", static_cast<double>(f.written_to_disk) * block_bytes_, "B");
  }

 private:
  void add(const Simulated& of, const std::string& figure, double value, const char* unit) {
    FleetCase alone = of.fleet;
    alone.remote_blocks = 0;
    const auto beside = values_.find(figure + fleet_suffix(alone));
    report_.add("fleet." + figure + fleet_suffix(of.fleet), value, unit,
                of.fleet.remote_blocks == 0 || beside == values_.end()
                    ? std::nullopt
                    : std::optional(beside->second));
    values_[figure + fleet_suffix(of.fleet)] = value;
  }

  double block_bytes_;
  Report& report_;
  std::map<std::string, double> values_;
};

std::string fleet_table(const std::vector<Simulated>& all, std::uint64_t block_bytes) {
  std::vector<ctl::Table::Column> columns{{"POLICY"}, {"ROUTING"}};
  for (const char* title :
       {"REMOTE", "GB/s", "HITS", "HOST", "DISK", "REMOTE", "INSTEAD", "IMBALANCE", "A MINUTE",
        "BUSY", "P50 ms", "P99 ms", "READ", "WRITTEN", "TO DISK"})
    columns.push_back({title, true});
  ctl::Table table(std::move(columns));
  for (const Simulated& of : all) {
    const FleetCase& fleet = of.fleet;
    const FleetFigures& f = of.figures;
    const bool shared = fleet.remote_blocks > 0;
    const auto share = [&](std::uint64_t part) { return formatted("%.3f", f.share(part)); };
    const auto bytes = [&](std::uint64_t blocks) { return ctl::human_bytes(blocks * block_bytes); };
    table.add({name(fleet.policy), name(fleet.routing),
               shared ? std::to_string(fleet.remote_blocks) : "-",
               shared ? formatted("%g", fleet.network_bytes_per_s / 1e9) : "-", share(f.all_hits()),
               share(f.host_hits), share(f.disk_hits), share(f.remote_hits),
               share(f.computed_instead), formatted("%.2f", f.imbalance),
               formatted("%.2f", f.minute_imbalance), formatted("%.3f", f.busy),
               formatted("%.0f", 1e3 * f.first_token_p50_s),
               formatted("%.0f", 1e3 * f.first_token_p99_s), bytes(f.read_from_remote),
               bytes(f.written_to_remote), bytes(f.written_to_disk)});
  }
  return table.text();
}

}  // namespace

void measure_fleet(const FleetRun& run, Report& report) {
  const daemon::Trace trace = need(daemon::read_trace(run.trace, run.block_tokens));
  FleetOptions options = run.fleet;
  if (options.block_bytes == 0) options.block_bytes = trace.block_tokens * kBytesPerToken;
  const auto cases = cases_of(run);
  const std::uint32_t processors = std::max(1U, std::thread::hardware_concurrency());
  const std::uint32_t threads = run.threads == 0 ? processors : run.threads;
  constexpr std::uint64_t kOwnDescriptors = 64;
  have_descriptors(std::min<std::uint64_t>(threads, cases.size()) * options.hosts +
                   kOwnDescriptors);
  const auto all = simulate_all(trace, options, cases, threads);

  report.add("fleet.hosts", options.hosts, "");
  report.add("fleet.requests", static_cast<double>(trace.requests.size()) * options.copies, "");
  report.add("fleet.blocks", static_cast<double>(trace.blocks) * options.copies, "");
  report.add("fleet.seconds", trace.seconds() / options.speed, "s");
  report.add("fleet.hit_share.endless", daemon::replay_endless(trace).share(), "share");
  FleetRows rows(options.block_bytes, report);
  for (const Simulated& of : all) rows.add(of);
  report.show_instead(std::to_string(options.hosts) + " hosts of " +
                      std::to_string(options.host_blocks) + " blocks of " +
                      ctl::human_bytes(options.block_bytes) + " in memory and " +
                      std::to_string(options.disk_blocks) + " on disk, " +
                      std::to_string(trace.requests.size() * options.copies) + " requests in " +
                      formatted("%.0f", trace.seconds() / options.speed) + " s\n\n" +
                      fleet_table(all, options.block_bytes));
}

}  // namespace kvtier::bench
