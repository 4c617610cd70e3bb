// What the events' thread counts for those who watch the daemon. It writes, the control thread
// reads.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvtier::daemon::events {

struct EventCounts {
  std::atomic<bool> listening{false};
  std::atomic<std::uint64_t> batches{0};     // published
  std::atomic<std::uint64_t> stored{0};      // blocks told as stored, once a tier
  std::atomic<std::uint64_t> removed{0};     // likewise
  std::atomic<std::uint64_t> walks{0};       // begun, the first one too
  std::atomic<std::uint64_t> replayed{0};    // batches of answers, snapshots' too
  std::atomic<std::uint64_t> snapshots{0};   // given to subscribers
  std::atomic<std::uint64_t> kept_bytes{0};  // for replays
  std::atomic<std::uint32_t> subscriptions{0};
};

}  // namespace kvtier::daemon::events
