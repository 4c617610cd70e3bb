// What a cache would have of a trace of requests, by the size of its host and disk tiers: so that
// what more of either buys is known before it is bought. The device tier is left out: it holds what
// the host tier had.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ctl/json.h"
#include "daemon/trace/replay.h"
#include "kvtier/result.h"

namespace kvtier::engine::cli {

// In one storage format.
struct TracePlan {
  struct Size {
    std::uint64_t host_bytes = 0;
    std::uint64_t disk_bytes = 0;
    double share = 0;    // of the trace's blocks that hit
    double host = 0;     // of them in host memory
    double optimum = 0;  // by a cache of that size that knows the future
  };
  std::string format;
  std::uint64_t block_bytes = 0;  // of the trace's blocks
  std::uint64_t requests = 0;
  double seconds = 0;
  double endless = 0;  // what a cache without an end would have
  std::uint64_t endless_bytes = 0;
  std::size_t given = 0;  // which of the sizes is the one that was asked about
  std::vector<Size> sizes;
};

// `record_bytes`: of `record_tokens` tokens in the tiers. `host_bytes` 0: no size is given, and
// several are taken that suit the trace. Errors: invalid (no block fits).
Result<TracePlan> plan_trace(const daemon::Trace& trace, const std::string& format,
                             std::uint64_t record_bytes, std::uint32_t record_tokens,
                             std::uint64_t host_bytes, std::uint64_t disk_bytes);

std::string to_text(const TracePlan& plan);
ctl::Json to_json(const TracePlan& plan);

}  // namespace kvtier::engine::cli
