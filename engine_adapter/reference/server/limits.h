// The server's bounds.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace kvtier::engine::server {

inline constexpr std::size_t kBodyBytesMax = 16U << 20U;
inline constexpr std::size_t kHeaderBytesMax = 16U << 10U;
inline constexpr std::uint32_t kConnectionsMax = 1024;
// Of a body's JSON. Parts (keys, texts, lists, objects) have memory of their own, values (parts and
// numbers) 16 bytes each.
inline constexpr std::size_t kJsonDepthMax = 64;
inline constexpr std::size_t kJsonKeysMax = 1024;  // of one object
inline constexpr std::size_t kJsonPartsMax = 1U << 18U;
inline constexpr std::size_t kJsonValuesMax = 1U << 21U;

inline constexpr std::uint32_t kAnswersMax = 16;  // n, best_of
inline constexpr std::size_t kPromptsMax = 128;   // of one request
inline constexpr std::uint32_t kTopLogprobsMax = 20;
inline constexpr std::size_t kStopsMax = 16;
inline constexpr std::size_t kStopBytesMax = 1024;
inline constexpr std::size_t kSaltBytesMax = 256;

// Beside the connections that a request may be answered on: so that all who wait for an answer keep
// nobody from asking after the server's health.
inline constexpr std::uint32_t kSparePlaces = 16;

// Of a connection's first header, of an idle connection, of one request's arrival, and of one write
// to a client that does not read.
inline constexpr std::chrono::seconds kFirstHeaderTimeout{10};
inline constexpr std::chrono::seconds kIdleTimeout{75};
inline constexpr std::chrono::seconds kReadTimeout{30};
inline constexpr std::chrono::seconds kWriteTimeout{30};
// From the end of what a client sends to the first look whether it has gone (client_watch.h).
inline constexpr std::chrono::milliseconds kProbeAfter{2000};
// What is read of a refused request before its connection is closed.
inline constexpr std::chrono::seconds kDrainTimeout{5};
inline constexpr std::size_t kDrainBytesMax = 4 * kBodyBytesMax;

// A step that takes longer is taken for one that never ends: /health says so.
inline constexpr std::chrono::seconds kStepMax{60};

// Connections are served on these: nothing is computed there that grows with a body.
inline constexpr unsigned kThreads = 2;
// Requests are read, rendered and tokenised, and long answers written, on threads of their own:
// these for bodies up to kSmallBodyBytes, and as many for larger ones, which take up to seconds.
inline constexpr unsigned kWorkThreads = 2;
inline constexpr std::size_t kSmallBodyBytes = 64U << 10U;

}  // namespace kvtier::engine::server
