#include <stdexcept>

#include "bench/support/raw_disk.h"
#include "bench/support/records.h"
#include "bench/tiers/commands.h"
#include "bench/tiers/tier_disk.h"

namespace kvtier::bench {
namespace {

std::string size_name(std::uint64_t bytes) {
  if (bytes % (1U << 20) == 0) return std::to_string(bytes >> 20) + "MiB";
  return std::to_string(bytes >> 10) + "KiB";
}

// Turn by turn, so that what else the device does falls on both.
void compare(Direction direction, RawDisk& raw, TierDisk& tier, std::uint64_t size,
             const DiskOptions& options, Report& report) {
  std::vector<double> of_raw, of_tier;
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    of_raw.push_back(raw.run(direction, static_cast<std::uint32_t>(size), options.seconds));
    of_tier.push_back(tier.run(direction, options.seconds));
  }
  const std::string verb = direction == Direction::read ? "read" : "write";
  report.add("disk." + verb + "." + size_name(size), median(of_tier) / 1e9, "GB/s",
             median(of_raw) / 1e9);
}

}  // namespace

void measure_disk(const DiskOptions& options, Report& report) {
  const ScratchDirectory scratch(options.directory);
  RawDisk raw(scratch.path() / "raw", options.bytes);
  for (const std::uint64_t size : options.sizes) {
    const auto directory = scratch.path() / "tier";
    {
      TierDisk tier(directory, size, options.bytes);
      for (const auto direction : {Direction::read, Direction::write}) {
        compare(direction, raw, tier, size, options, report);
      }
    }
    std::filesystem::remove_all(directory);
  }
}

}  // namespace kvtier::bench
