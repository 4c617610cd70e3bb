// Why a client did not write a block back: the order of Report.dropped.
#pragma once

#include <array>
#include <cstdint>

namespace kvtier {

enum class DropReason : std::uint8_t {
  no_slot,       // kvtierd had no room for it in time
  queue_full,    // too much was queued already
  disconnected,  // the connection ended, or the client closed
  failed         // the pages or the GPU were not usable, or the client may only read
};
inline constexpr std::array<const char*, 4> kDropReasonNames{"no_slot", "queue_full",
                                                             "disconnected", "failed"};
inline constexpr std::size_t kDropReasons = kDropReasonNames.size();

}  // namespace kvtier
