// Why a client did not write a block back: the order of Report.dropped.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

namespace kvtier {

enum class DropReason : std::uint8_t {
  no_slot,       // kvtierd had no room for it in time
  queue_full,    // too much was queued already
  disconnected,  // there was no connection, or it ended, or the client closed
  failed         // the pages or the GPU were not usable, or the client may only read
};
inline constexpr std::array<const char*, 4> kDropReasonNames{"no_slot", "queue_full",
                                                             "disconnected", "failed"};
inline constexpr std::size_t kDropReasons = kDropReasonNames.size();

constexpr const char* name(DropReason why) noexcept {
  return kDropReasonNames[static_cast<std::size_t>(why)];
}

// Blocks that were dropped, by reason.
struct Drops {
  std::array<std::uint64_t, kDropReasons> blocks{};

  constexpr std::uint64_t operator[](DropReason why) const noexcept {
    return blocks[static_cast<std::size_t>(why)];
  }
  constexpr std::uint64_t total() const noexcept {
    return std::accumulate(blocks.begin(), blocks.end(), std::uint64_t{0});
  }
  friend bool operator==(const Drops&, const Drops&) = default;
};

}  // namespace kvtier
