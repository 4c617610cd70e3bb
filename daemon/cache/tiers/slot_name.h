// A slot of a memory tier as clients and the wire name it.
#pragma once

#include <cstdint>

#include "daemon/cache/catalogue/block_index.h"

namespace kvtier::daemon {

using SlotName = std::uint64_t;  // extent << 32 | slot

constexpr SlotName slot_name(Place at) noexcept {
  return static_cast<std::uint64_t>(at.container) << 32 | at.slot;
}
constexpr Place place_named(SlotName slot) noexcept {
  return {static_cast<std::uint32_t>(slot >> 32), static_cast<std::uint32_t>(slot)};
}

}  // namespace kvtier::daemon
