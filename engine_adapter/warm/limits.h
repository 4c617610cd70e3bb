// kvtier-warm's bounds.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace kvtier::warm {

inline constexpr std::size_t kManifestBytesMax = 16U << 20U;
inline constexpr std::size_t kTextBytesMax = 15U << 20U;  // prefix and document; a body has more
inline constexpr std::size_t kAnswerBytesMax = 4U << 20U;
inline constexpr std::size_t kDocumentsMax = 1'000'000;
inline constexpr std::uint32_t kParallelMax = 256;

inline constexpr std::chrono::seconds kConnectTimeout{10};
// An answer that says "later", and a connection that breaks, are tried again so often; the first
// wait is the shortest, each is twice the one before.
inline constexpr unsigned kAttemptsMax = 6;
inline constexpr std::chrono::milliseconds kFirstWait{250};
inline constexpr std::chrono::milliseconds kProgressEvery{200};

}  // namespace kvtier::warm
