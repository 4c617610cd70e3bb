#include <array>
#include <map>
#include <memory>

#include "bench/support/policy_names.h"
#include "bench/support/records.h"
#include "bench/tiers/commands.h"
#include "bench/tiers/index_prefixes.h"
#include "daemon/trace/replay.h"

namespace kvtier::bench {
namespace {

using daemon::Admission;
using daemon::EvictionPolicy;
using daemon::Replayed;

constexpr std::array kPolicies{EvictionPolicy::lru, EvictionPolicy::hit_density};
constexpr std::uint64_t kOperations = 3'500'000;  // of each kind and policy
constexpr std::uint32_t kRuns = 7;                // the median counts
constexpr double kCostMax = 1.3;                  // times that of `lru`
constexpr double kBytesMoreMax = 12;

class Shares {
 public:
  Shares(const daemon::Trace& trace, const TraceOptions& options, Report& report)
      : trace_(trace), options_(options), report_(report) {}

  void at(std::uint64_t blocks) {
    const std::string suffix = "." + std::to_string(blocks);
    std::optional<double> lru, written;
    for (const EvictionPolicy policy : kPolicies) {
      const bool expects = options_.admission == Admission::expected_reuse;
      const bool all = expects && policy == EvictionPolicy::lru;
      const Replayed done = need(daemon::replay(
          trace_, {policy, blocks, options_.disk_blocks, all ? Admission::all : options_.admission,
                   options_.write_share, options_.answers}));
      report_.add("trace.hit_share." + name(policy) + suffix, done.share(), "share", lru);
      if (options_.disk_blocks != 0) tiers(policy, suffix, done, written);
      lru = done.share();
      written = static_cast<double>(done.written);
    }
    // Two tiers have at most as much as one that is as large as both.
    report_.add("trace.hit_share.optimum" + suffix,
                daemon::replay_optimum(trace_, blocks + options_.disk_blocks).share(), "share");
  }

 private:
  void tiers(EvictionPolicy policy, const std::string& suffix, const Replayed& done,
             std::optional<double> written) {
    const std::string of = name(policy) + suffix;
    report_.add("trace.hit_share_host." + of, done.share(Tier::host), "share");
    report_.add("trace.hit_share_disk." + of, done.share(Tier::disk), "share");
    const auto bytes = static_cast<double>(options_.block_bytes);
    report_.add("trace.written." + of, static_cast<double>(done.written) * bytes, "B",
                written ? std::optional(*written * bytes) : std::nullopt);
  }

  const daemon::Trace& trace_;
  const TraceOptions& options_;
  Report& report_;
};

// Both policies take turns, so that what else the machine does falls on both.
void measure_costs(std::uint32_t blocks, Report& report) {
  std::array<std::unique_ptr<IndexPrefixes>, kPolicies.size()> indexes;
  std::array<std::map<std::string, std::vector<double>>, kPolicies.size()> figures;
  for (std::size_t p = 0; p < kPolicies.size(); ++p)
    indexes[p] = std::make_unique<IndexPrefixes>(blocks, kPolicies[p]);
  for (std::uint32_t run = 0; run < kRuns; ++run) {
    for (std::size_t p = 0; p < kPolicies.size(); ++p) {
      figures[p]["touch"].push_back(indexes[p]->use(kOperations / kRuns));
      const auto turnover = indexes[p]->turn_over(kOperations / kRuns);
      figures[p]["insert"].push_back(turnover.insert_ns);
      figures[p]["evict"].push_back(turnover.evict_ns);
    }
  }
  for (auto& [operation, of_lru] : figures[0]) {
    const double lru = median(of_lru);
    const double density = median(figures[1][operation]);
    report.add("trace." + operation + "_ns.lru", lru, "ns");
    report.add("trace." + operation + "_ns.hit_density", density, "ns", kCostMax * lru);
  }
  const double lru = indexes[0]->bytes_per_block();
  report.add("trace.bytes_per_block.lru", lru, "B");
  report.add("trace.bytes_per_block.hit_density", indexes[1]->bytes_per_block(), "B",
             lru + kBytesMoreMax);
}

}  // namespace

void measure_trace(const TraceOptions& options, Report& report) {
  const daemon::Trace trace = need(daemon::read_trace(options.trace, options.block_tokens));
  report.add("trace.requests", static_cast<double>(trace.requests.size()), "");
  report.add("trace.seconds", trace.seconds(), "s");
  report.add("trace.block_tokens", trace.block_tokens, "");
  report.add("trace.blocks", static_cast<double>(trace.blocks), "");
  report.add("trace.different_blocks", static_cast<double>(trace.different_blocks), "");
  report.add("trace.hit_share.endless", daemon::replay_endless(trace).share(), "share");
  TraceOptions known = options;
  if (known.block_bytes == 0) known.block_bytes = trace.block_tokens * kBytesPerToken;
  Shares shares(trace, known, report);
  for (const std::uint64_t blocks : options.blocks) shares.at(blocks);
  if (options.cost_blocks != 0) measure_costs(options.cost_blocks, report);
}

}  // namespace kvtier::bench
