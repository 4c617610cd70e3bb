// What an engine, a router or an agent framework knows of the time ahead. A hint is never a
// promise: whatever is not there, or may not be had, is passed over, and metrics count it.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "kvtier/tier.h"

namespace kvtier {

enum class HintKind : std::uint8_t {
  // A request will need these blocks soon: they come to `tier` (host or device) ahead of it, and
  // are the most recently used ones there.
  prefetch = 0,
  // They stay in `tier` (host or device) while others may go: for `keep_for` before all that is not
  // kept, and by their `priority` after that. It ends with the blocks' going, and with neither a
  // time nor a priority at once.
  keep = 1,
  // They will be needed, but not soon: the first to go from `tier` (host or device) and faster
  // ones, and written to disk before, where the disk tier takes anything. What another user has
  // used too stays as it is.
  demote = 2,
  // The session whose prefix this is has ended: as demote, but nothing is written, and what other
  // prefixes have in common with this one stays as it is too.
  ended = 3,
};
inline constexpr std::size_t kHintKinds = 4;
inline constexpr std::array<const char*, kHintKinds> kHintKindNames{"prefetch", "keep", "demote",
                                                                    "ended"};

struct Hint {
  HintKind kind = HintKind::prefetch;
  Tier tier = Tier::host;
  std::uint8_t priority = 0;  // of keep: 0 none, to kHintPriorityMax
  std::chrono::seconds keep_for{0};
};

inline constexpr std::uint8_t kHintPriorityMax = 3;
// A longer time is as long as this.
inline constexpr std::chrono::seconds kHintKeepMax{24 * 3600};

}  // namespace kvtier
