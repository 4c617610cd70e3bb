// kvtier-bench fleet: a trace over a fleet of hosts, for each policy and routing, without and with
// shared stores of several sizes and networks of several rates.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <vector>

#include "bench/fleet/fleet.h"
#include "bench/support/report.h"

namespace kvtier::bench {

struct FleetRun {
  std::filesystem::path trace;
  std::uint32_t block_tokens = 0;  // 0: as the trace's lengths say
  FleetOptions fleet;              // block_bytes 0: kBytesPerToken for each of its tokens
  std::vector<daemon::EvictionPolicy> policies{daemon::EvictionPolicy::lru,
                                               daemon::EvictionPolicy::hit_density};
  std::vector<Routing> routings{kRoutings.begin(), kRoutings.end()};
  // Of each shared store; 0: none. Each but none is tried with each rate.
  std::vector<std::uint64_t> remote_blocks{0, 50'000};
  std::vector<double> network_bytes_per_s{3e9};  // of a host's port, each way
  std::uint32_t threads = 0;  // that simulate, one fleet each; 0: as many as processors
};

CLI::App* add_fleet(CLI::App& app, FleetRun& run);

// Throws std::runtime_error where it cannot be simulated.
void measure_fleet(const FleetRun& run, Report& report);

}  // namespace kvtier::bench
