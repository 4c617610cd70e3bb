// A fleet of hosts by simulation: a trace of requests is sent to hosts, each with a catalogue of
// its own (daemon/trace), and beside them there may be one store that all share. It tells where
// blocks hit, how evenly the hosts are busy, and when first tokens come by rates that are given.
//
// What it does not know: a prompt's blocks are there as soon as the prompt has come, answers are
// neither computed nor cached, and a host's memory, disk and network each serve one request after
// the other.
#pragma once

#include <array>
#include <cstdint>

#include "bench/fleet/first_token.h"
#include "daemon/trace/replay.h"

namespace kvtier::bench {

// Which host a request goes to.
//
//   random       any, all alike
//   round_robin  one after the other
//   session      told by the first blocks: requests that begin alike go to one host
//   cache        the one with the longest prefix, by what hosts tell of their blocks as they store
//                and remove them, less what it has had to compute of late: the greatest
//                (leading blocks it has) - load_weight * (its load - the least load of a host),
//                where a load is the blocks computed, which fade with load_seconds. Among equals
//                any.
enum class Routing { random, round_robin, session, cache };
inline constexpr std::array kRoutings{Routing::random, Routing::round_robin, Routing::session,
                                      Routing::cache};
const char* name(Routing routing) noexcept;

// What goes to the shared store: all that is computed, or what a host finds a second time at home.
enum class RemoteAdmission { all, second_use };

struct FleetOptions {
  static constexpr std::uint32_t kHostsMax = 10'000;
  std::uint32_t hosts = 16;          // from 1 to kHostsMax
  std::uint64_t host_blocks = 1250;  // in the memory of each
  std::uint64_t disk_blocks = 0;     // on the disk of each
  daemon::Admission disk_admission = daemon::Admission::all;
  RemoteAdmission remote_admission = RemoteAdmission::all;
  bool answers = true;  // the policy is told how long they are
  std::uint32_t session_blocks = 2;
  double load_weight = 0.25;  // blocks of prefix for a block of load
  double load_seconds = 30;   // in which a load falls to 1/e
  // So many copies of the trace run beside one another and have no block in common. They begin
  // evenly spread over so many seconds, and go so many times as fast as the trace's times say.
  std::uint32_t copies = 1;
  double spread_seconds = 60;
  double speed = 1;
  std::uint64_t seed = 1;
  std::uint64_t block_bytes = 0;  // of one of the trace's blocks
  Rates rates;
};

struct FleetCase {
  daemon::EvictionPolicy policy = daemon::EvictionPolicy::hit_density;
  Routing routing = Routing::random;
  std::uint64_t remote_blocks = 0;   // in the shared store; 0: there is none
  double network_bytes_per_s = 3e9;  // of a host's port, each way
};

struct FleetFigures {
  std::uint64_t requests = 0;
  std::uint64_t blocks = 0;  // looked up
  std::uint64_t host_hits = 0, disk_hits = 0, remote_hits = 0;
  // Of the blocks that hit on disk or in the store, those that were computed all the same, since
  // loading them would have taken longer.
  std::uint64_t computed_instead = 0;
  std::uint64_t written_to_disk = 0;
  std::uint64_t read_from_remote = 0, written_to_remote = 0;
  std::uint64_t dropped_writes = 0;  // that would have waited for too long
  double imbalance = 0;              // blocks computed by the busiest host, over the mean
  double minute_imbalance = 0;       // the same within a minute, the median of all minutes
  double busy = 0;  // share of the time, to the last first token, that a host computes
  double first_token_p50_s = 0, first_token_p99_s = 0, first_token_mean_s = 0;
  double share(std::uint64_t of) const noexcept {
    return static_cast<double>(of) / static_cast<double>(blocks);
  }
  friend bool operator==(const FleetFigures&, const FleetFigures&) = default;
  std::uint64_t all_hits() const noexcept { return host_hits + disk_hits + remote_hits; }
};

// The same for the same seed, on every machine. Errors: invalid (a size that the index cannot
// have), io (more hosts than descriptors).
Result<FleetFigures> simulate(const daemon::Trace& trace, const FleetOptions& options,
                              const FleetCase& fleet);

}  // namespace kvtier::bench
