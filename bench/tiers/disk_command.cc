#include <stdexcept>

#include "bench/support/records.h"
#include "bench/tiers/disk_turns.h"
#include "bench/tiers/tier_disk.h"

namespace kvtier::bench {
namespace {

std::string size_name(std::uint64_t bytes) {
  if (bytes % (1U << 20) == 0) return std::to_string(bytes >> 20) + "MiB";
  return std::to_string(bytes >> 10) + "KiB";
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
        const std::string verb = direction == Direction::read ? "read" : "write";
        report_turns("disk." + verb + "." + size_name(size), raw, direction, size, options.turns,
                     report, [&] { return tier.run(direction, options.turns.seconds); });
      }
    }
    std::filesystem::remove_all(directory);
  }
}

}  // namespace kvtier::bench
