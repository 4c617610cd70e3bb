#include "bench/serve/serve_statistics.h"

#include <algorithm>

namespace kvtier::bench {
namespace {

constexpr double kHigh = 0.99;

}  // namespace

std::uint64_t Summary::computed_tokens() const noexcept {
  std::uint64_t found = own_pages_tokens;
  for (const std::uint64_t tokens : tier_tokens) found += tokens;
  return prompt_tokens - std::min(found, prompt_tokens);
}

Summary summarise(const Pass& pass) {
  Summary summary;
  if (pass.served.empty()) return summary;
  std::vector<double> first, between;
  for (const Served& served : pass.served) {
    first.push_back(1e3 * (served.token_s.front() - served.due_s));
    for (std::size_t i = 1; i < served.token_s.size(); ++i) {
      between.push_back(1e3 * (served.token_s[i] - served.token_s[i - 1]));
    }
    summary.prompt_tokens += served.usage.prompt_tokens;
    summary.own_pages_tokens += served.usage.cached_local;
    for (std::size_t i = 0; i < kTiersWithRemote; ++i) {
      summary.tier_tokens[i] += served.usage.cached_tiers[i];
    }
  }
  summary.requests = pass.served.size();
  summary.requests_per_s = static_cast<double>(summary.requests) / pass.seconds;
  summary.first_token_p50_ms = median(first);
  summary.first_token_p99_ms = percentile(first, kHigh);
  if (!between.empty()) {
    summary.inter_token_p50_ms = median(between);
    summary.inter_token_p99_ms = percentile(between, kHigh);
  }
  return summary;
}

void add_rows(Report& report, const std::string& name, const Summary& summary) {
  report.add(name + ".requests", static_cast<double>(summary.requests), "count");
  report.add(name + ".requests_per_s", summary.requests_per_s, "1/s");
  report.add(name + ".first_token_p50", summary.first_token_p50_ms, "ms");
  report.add(name + ".first_token_p99", summary.first_token_p99_ms, "ms");
  report.add(name + ".inter_token_p50", summary.inter_token_p50_ms, "ms");
  report.add(name + ".inter_token_p99", summary.inter_token_p99_ms, "ms");
  const auto share = [&](const char* from, std::uint64_t tokens) {
    const double of = static_cast<double>(std::max<std::uint64_t>(summary.prompt_tokens, 1));
    report.add(name + ".tokens_from." + from, 100 * static_cast<double>(tokens) / of, "%");
  };
  share("own_pages", summary.own_pages_tokens);
  share("hbm", summary.tier_tokens[index_of(Tier::device)]);
  share("host", summary.tier_tokens[index_of(Tier::host)]);
  share("nvme", summary.tier_tokens[index_of(Tier::disk)]);
  share("remote", summary.tier_tokens[index_of(Tier::remote)]);
  share("computed", summary.computed_tokens());
}

// As percentile() counts.
std::size_t late_allowed(std::size_t requests) noexcept {
  if (requests == 0) return 0;
  const auto at = static_cast<std::size_t>(kHigh * static_cast<double>(requests));
  return requests - 1 - std::min(at, requests - 1);
}

}  // namespace kvtier::bench
