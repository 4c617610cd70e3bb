// A trace replayed through the daemon's own bookkeeping: the catalogue with its index, its eviction
// orders and its policy, and real keys, but no payloads, disks or clients. Prompts come one after
// the other: each is leased as far as it is there, the rest is committed behind it, and then the
// lease ends. The clock is the trace's.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "daemon/cache/catalogue/catalogue.h"
#include "daemon/trace/trace_file.h"

namespace kvtier::daemon {

struct ReplayOptions {
  EvictionPolicy policy = EvictionPolicy::hit_density;
  std::uint64_t host_blocks = 0;  // at least one
  std::uint64_t disk_blocks = 0;  // 0: no disk
  Admission admission = Admission::all;
  // With Admission::expected_reuse: what may be written, as a part of the blocks that come.
  double write_share = 0.5;
  bool answers_told = true;  // the engine says how long an answer is
};

struct Replayed {
  std::uint64_t blocks = 0;                  // looked up
  std::array<std::uint64_t, kTiers> hits{};  // by the tier that had them
  std::uint64_t written = 0;                 // blocks to disk
  std::uint64_t all_hits() const noexcept { return hits[0] + hits[1] + hits[2]; }
  double share() const noexcept {
    return static_cast<double>(all_hits()) / static_cast<double>(blocks);
  }
  double share(Tier tier) const noexcept {
    return static_cast<double>(hits[static_cast<std::size_t>(tier)]) / static_cast<double>(blocks);
  }
};

Result<Replayed> replay(const Trace& trace, const ReplayOptions& options);

// What a cache of so many blocks could have had that knows the future: a block is kept, or not even
// taken, by how soon it is used again (Belady).
Replayed replay_optimum(const Trace& trace, std::uint64_t blocks);
// And one without an end.
Replayed replay_endless(const Trace& trace);

}  // namespace kvtier::daemon
