// How much memory this machine can give the host tier: what `[host] capacity = "auto"` and shares
// such as "25%" are of.
#pragma once

#include <cstdint>
#include <filesystem>

#include "daemon/config/config.h"

namespace kvtier::daemon {

struct HostMemory {
  std::uint64_t total_bytes = 0;      // the machine's, or the limit of this process's control group
  std::uint64_t available_bytes = 0;  // without swapping; never more than the total
};

// `root` is where /proc and /sys are; tests have others. Errors: io (no /proc/meminfo that can be
// read).
Result<HostMemory> read_host_memory(const std::filesystem::path& root = "/");

// Puts bytes in the place of a share or "auto", rounded down to whole MiB (auto: to whole extents,
// if there is one) and at least kHostFloorBytes. `held_bytes`: what the tier has already, which
// counts as available, so that a restart that takes it over comes to the same size. A fixed
// capacity stays.
//
//   share: that part of the total.
//   auto:  a quarter of the total, or half of what is available if that is less.
void resolve_capacity(Config::Memory& host, const HostMemory& memory, std::uint64_t held_bytes);

// The same on this machine, for a daemon's configuration as it was read; and checks what depends on
// the size. Errors: io, invalid.
Result<void> settle_host_capacity(Config& config, std::uint64_t held_bytes);

}  // namespace kvtier::daemon
