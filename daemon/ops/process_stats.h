// What the kernel says of this process, by the names that Prometheus gives it.
#pragma once

#include <cstdint>

namespace kvtier::daemon::ops {

struct ProcessStats {
  double cpu_seconds = 0;
  double start_time_seconds = 0;  // since the epoch
  std::uint64_t resident_bytes = 0;
  std::uint64_t resident_shared_bytes = 0;  // the tiers' extents are among these
  std::uint64_t virtual_bytes = 0;
  std::uint64_t open_fds = 0;
  std::uint64_t max_fds = 0;
  std::uint64_t threads = 0;
};

// Reads /proc/self. What is not there stays 0.
ProcessStats process_stats();

}  // namespace kvtier::daemon::ops
