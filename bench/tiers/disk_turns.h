// The disk tier and the bare loop on the same device, turn by turn, so that what else the device
// does falls on both.
#pragma once

#include <string>
#include <vector>

#include "bench/support/raw_disk.h"
#include "bench/tiers/commands.h"

namespace kvtier::bench {

// Adds the row `name`: of the medians of both in bytes per second the tier's, beside the loop's at
// transfers of `size`. `tier()` is one turn.
template <class Tier>
void report_turns(const std::string& name, RawDisk& raw, Direction direction, std::uint64_t size,
                  const TurnOptions& turns, Report& report, Tier&& tier) {
  std::vector<double> of_raw, of_tier;
  for (std::uint32_t round = 0; round < turns.rounds; ++round) {
    of_raw.push_back(raw.run(direction, static_cast<std::uint32_t>(size), turns.seconds));
    of_tier.push_back(tier());
  }
  report.add(name, median(of_tier) / 1e9, "GB/s", median(of_raw) / 1e9);
}

}  // namespace kvtier::bench
