#include "daemon/session/client_told.h"

#include <numeric>

namespace kvtier::daemon {
namespace {

bool fits(wire::Report::Timing::Reader timing) {
  return timing.getBuckets().size() <= kLog2Buckets + 1;
}

void add(wire::Report::Timing::Reader timing, Transfers& to) {
  const auto buckets = timing.getBuckets();
  for (unsigned i = 0; i < buckets.size(); ++i) to.us.add_counted(i, buckets[i]);
  to.us.add_to_sum(timing.getSumUs());
  to.bytes += timing.getBytes();
}

}  // namespace

Result<void> ClientTold::take(wire::Report::Reader report) {
  const auto by_tier = report.getLoads();
  const auto by_reason = report.getDropped();
  bool good = by_tier.size() <= loads.size() && by_reason.size() <= dropped.size();
  for (const auto timing : by_tier) good = good && fits(timing);
  if (!good || !fits(report.getWriteBacks()))
    return make_error(Errc::malformed, "request: a report with too many counters");
  header_faults += report.getHeaderFaults();
  proof_faults += report.getProofFaults();
  checksum_faults += report.getChecksumFaults();
  for (unsigned i = 0; i < by_reason.size(); ++i) dropped[i] += by_reason[i];
  for (unsigned t = 0; t < by_tier.size(); ++t) add(by_tier[t], loads[t]);
  add(report.getWriteBacks(), write_backs);
  return {};
}

std::uint64_t ClientTold::dropped_in_all() const noexcept {
  return std::accumulate(dropped.begin(), dropped.end(), std::uint64_t{0});
}

}  // namespace kvtier::daemon
