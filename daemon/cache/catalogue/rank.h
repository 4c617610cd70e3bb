// Which placements of a tenant in a memory tier go before which, whenever they were used: what
// hints change. Those of one rank go in the order of their use.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvtier::daemon {

enum class Rank : std::uint8_t {
  spent = 0,      // demoted, or of an ended session
  normal = 1,     // no hint says otherwise
  preferred = 2,  // by a priority of 1, and so on up to 3
  kept = 5,       // until a time; within it by priority, of which two are told apart
  last = 7,
};
inline constexpr std::uint8_t kRanks = 8;

constexpr bool is_raised(Rank rank) noexcept {
  return rank > Rank::normal;
}
constexpr bool is_kept(Rank rank) noexcept {
  return rank >= Rank::kept;
}

// `priority`: from 0, none, to kHintPriorityMax.
constexpr Rank rank_of(std::uint8_t priority, bool kept) noexcept {
  const auto from = static_cast<std::uint8_t>(kept ? Rank::kept : Rank::normal);
  return static_cast<Rank>(std::min<unsigned>(from + priority, static_cast<unsigned>(Rank::last)));
}
static_assert(rank_of(0, false) == Rank::normal && rank_of(1, false) == Rank::preferred);
static_assert(rank_of(3, false) < Rank::kept);

}  // namespace kvtier::daemon
