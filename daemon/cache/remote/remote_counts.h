// What the remote tier counts beside what its store counts.
#pragma once

#include <array>
#include <cstdint>

#include "daemon/telemetry.h"

namespace kvtier::daemon {

// Why a block was not written to the remote tier. `refused`: the store's queue was full, or its
// budget spent.
enum class RemoteDrop : std::uint8_t { queue_full, offline, parent, readers, refused, failed };
inline constexpr std::array<const char*, 6> kRemoteDropNames{"queue_full", "offline", "parent",
                                                             "readers",    "refused", "failed"};

struct RemoteCounts {
  std::uint64_t asked = 0;         // lookups that were sent
  std::uint64_t asked_blocks = 0;  // keys in them
  std::uint64_t found_blocks = 0;
  std::uint64_t late = 0;          // lookups that their leases did not wait for
  std::uint64_t failed = 0;        // that the store did not answer, or refused
  std::uint64_t known_absent = 0;  // not asked: it was not there a moment ago
  std::uint64_t learnt = 0;        // entries made of what was found
  std::uint64_t forgotten = 0;     // entries that went for others to be known
  std::uint64_t stale = 0;         // blocks that were known and are not there any more
  std::uint64_t written = 0;
  std::array<std::uint64_t, kRemoteDropNames.size()> drops{};
  std::uint64_t health_changes = 0;
  Histogram lookup_us, read_us, write_us;  // from the control thread and back to it
};

}  // namespace kvtier::daemon
