// The bounds of a remote store: of what may wait, and for how long.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace kvtier::storage {

// Accepted and not yet done. Beyond: no_space.
inline constexpr std::size_t kRemoteReadsMax = 16'384;
inline constexpr std::size_t kRemoteWritesMax = 256;
inline constexpr std::size_t kRemoteKeysAskedMax = 65'536;  // of all finds
// Erases that are under way or wait for the store's return. Beyond, they are asked for once.
inline constexpr std::size_t kRemoteErasesMax = 65'536;

// A write has no deadline of its caller's; it holds a slot.
inline constexpr std::chrono::seconds kRemoteWriteTime{5};
// Of an erase, and of what the store asks for itself.
inline constexpr std::chrono::seconds kRemoteOwnTime{2};
// To have a connection that can be used, and how long one may be silent while it is asked.
inline constexpr std::chrono::seconds kRemoteConnectTime{2}, kRemoteSilence{2};
// How often what is well is looked at, and what is not: at first, and at last.
inline constexpr std::chrono::milliseconds kRemoteCheckInterval{1000}, kRemoteProbeFirst{100},
    kRemoteProbeMax{5000};

static_assert(kRemoteSilence <= kRemoteWriteTime && kRemoteOwnTime <= kRemoteWriteTime);

}  // namespace kvtier::storage
