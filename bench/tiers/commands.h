// The measurements of kvtier-bench. Each throws std::runtime_error where it cannot measure.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/support/report.h"
#include "daemon/config/config.h"

namespace kvtier::bench {

struct TurnOptions {
  double seconds;  // a turn
  std::uint32_t rounds = 5;
};

// The disk tier beside a bare io_uring loop on the same directory, taking turns.
struct DiskOptions {
  std::filesystem::path directory;
  TurnOptions turns{.seconds = 0.5};
  std::uint64_t bytes = 4ULL << 30;  // the tier's records, and the loop's file
  std::vector<std::uint64_t> sizes{256U << 10, 1U << 20, 2U << 20};
};
void measure_disk(const DiskOptions& options, Report& report);

// A kvtierd whose disk tier is full, as several models with records of different sizes leave it
// after a time: its reads and writes beside the bare loop, before and after.
struct AgeOptions {
  std::string kvtierd;
  std::filesystem::path directory;
  double age_seconds = 7200;
  TurnOptions turns{.seconds = 2};
  std::uint64_t bytes = 8ULL << 30;  // of the disk tier
  std::vector<std::uint64_t> sizes{256U << 10, 1U << 20, 2U << 20};
  std::uint64_t measured = 1U << 20;
};
void measure_ageing(const AgeOptions& options, Report& report);

// The daemon's index, eviction order and directory, at each number of blocks.
struct IndexOptions {
  std::vector<std::uint32_t> blocks{10'000, 10'000'000};
  std::filesystem::path directory;
  bool restart = true;
};
void measure_index(const IndexOptions& options, Report& report);
// Seconds from opening the disk tier of a stopped daemon with so many blocks to having all of them.
double restart_seconds(std::uint32_t blocks, const std::filesystem::path& directory);

// The index of a store of so many records of which one after the other is replaced.
struct TurnoverOptions {
  std::filesystem::path directory;
  std::uint32_t blocks = 10'000'000;
  std::uint64_t turnovers = 10'000'000;
  double per_second = 20'000;  // while reads are measured
  double seconds = 10;         // of reads, idle and then
};
void measure_turnover(const TurnoverOptions& options, Report& report);

// The index made anew from segments whose payloads are holes, and a reading of all of them, which
// costs no device's time for a hole.
struct RebuildOptions {
  std::filesystem::path directory;
  std::uint64_t bytes = 100ULL << 30;
  std::uint64_t record_bytes = 1U << 20;
  std::uint32_t rounds = 3;
};
void measure_rebuild(const RebuildOptions& options, Report& report);

// An engine's lookups against a kvtierd of their own, idle and while its disk tier writes.
struct LookupOptions {
  std::string kvtierd;
  std::filesystem::path directory;
  double seconds = 5;
  std::uint32_t blocks = 2048;
};
void measure_lookup(const LookupOptions& options, Report& report);

// One client's leases at a kvtierd of their own, by the number of clients that are connected: the
// others do nothing, then each holds a lease of the same blocks.
struct ClientsOptions {
  std::string kvtierd;
  std::filesystem::path directory;
  double seconds = 3;  // a part
  std::uint32_t blocks = 2048;
  std::vector<std::uint32_t> clients{1, 4, 16, 64, 128};
};
void measure_clients(const ClientsOptions& options, Report& report);

// Records to and from a Redis through the remote store beside a bare hiredis loop on the same
// server, with as many connections and as many operations on each, taking turns.
struct RemoteBenchOptions {
  std::string url;
  TurnOptions turns{.seconds = 1};
  std::uint64_t record_bytes = 1U << 20;
  std::uint32_t connections = 4;
};
void measure_remote(const RemoteBenchOptions& options, Report& report);

// A trace of requests replayed through the daemon's bookkeeping at each capacity, for the policies
// and for an optimum that knows the future; and what the policies cost.
inline constexpr std::uint64_t kBytesPerToken = 64U << 10;  // of Llama 3.1 8B in FP8
struct TraceOptions {
  std::filesystem::path trace;
  std::uint32_t block_tokens = 0;  // 0: as the trace's lengths say
  std::vector<std::uint64_t> blocks{1000, 2000, 5000, 10'000, 20'000};  // of the host tier
  std::uint64_t disk_blocks = 0;
  daemon::Admission admission = daemon::Admission::all;
  double write_share = 0.5;               // with expected_reuse, of the blocks that come
  std::uint64_t block_bytes = 0;          // 0: kBytesPerToken for each of its tokens
  bool answers = true;                    // the policy is told how long they are
  std::uint32_t cost_blocks = 1'000'000;  // of the index in which costs are measured; 0: none are
};
void measure_trace(const TraceOptions& options, Report& report);

}  // namespace kvtier::bench
