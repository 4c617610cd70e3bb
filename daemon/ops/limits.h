// Every bound of the HTTP listener.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace kvtier::daemon::ops {

// One more closes the one that has waited longest for its request.
inline constexpr std::size_t kConnectionsMax = 256;
inline constexpr int kBacklog = 1024;
inline constexpr std::size_t kHeaderBytesMax = 8192;
inline constexpr std::size_t kRequestsPerConnectionMax = 10'000;
// To send a request: the first one, which whoever connects has at hand, and the next ones.
inline constexpr std::chrono::seconds kFirstRequestTime{2};
inline constexpr std::chrono::seconds kRequestTime{10};
inline constexpr std::chrono::seconds kReplyTime{10};            // to take the reply
inline constexpr std::chrono::milliseconds kSnapshotTime{1000};  // then what is known is served
inline constexpr std::chrono::milliseconds kSnapshotEvery{20};   // at most so often
inline constexpr std::chrono::milliseconds kTurn{100};           // of the monitor's own clock
inline constexpr std::chrono::milliseconds kPingEvery{200};
inline constexpr std::chrono::seconds kListenAgain{10};  // after the address was not to be had
inline constexpr std::chrono::seconds kDiskStuckAfter{30};
inline constexpr std::chrono::seconds kHistoryEvery{10};
inline constexpr std::size_t kHistoryPoints = 360;  // an hour
inline constexpr std::size_t kProblemsMax = 64;
inline constexpr std::size_t kTextMax = 128;  // bytes of a name that a client gave

static_assert(kSnapshotTime < kReplyTime);

}  // namespace kvtier::daemon::ops
