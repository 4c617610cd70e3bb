// What the cache counts beside what its tiers and its catalogue count. Each is changed in one
// place, but faults, which several find.
#pragma once

#include <array>
#include <cstdint>

#include "daemon/telemetry.h"
#include "kvtier/tier.h"

namespace kvtier::daemon {

struct CacheCounts {
  std::array<std::uint64_t, kTiersWithRemote> hit_bytes{};  // of records leased, by their tier
  std::uint64_t unknown_releases = 0;  // of leases that were not there: released twice
  std::uint64_t refused_commits = 0;
  std::uint64_t reported_records_read = 0;  // because a client says that they do not hold
  std::uint64_t faults = 0;                 // blocks that a client or the disk found not to hold
  Histogram reuse_gap;                      // seconds between two uses of a block
};

}  // namespace kvtier::daemon
