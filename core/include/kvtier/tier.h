// The tiers, fastest first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvtier {

enum class Tier : std::uint8_t {
  device = 0,  // HBM, or host memory that stands in for it
  host = 1,
  disk = 2,
  remote = 3,  // a store that hosts share
};
// The tiers of a host, in which a block has a place.
inline constexpr std::size_t kTiers = 3;
inline constexpr std::array<Tier, kTiers> kAllTiers{Tier::device, Tier::host, Tier::disk};
// And the one that it shares with others.
inline constexpr std::size_t kTiersWithRemote = 4;
inline constexpr std::array<Tier, kTiersWithRemote> kAllTiersWithRemote{Tier::device, Tier::host,
                                                                        Tier::disk, Tier::remote};

constexpr std::size_t index_of(Tier tier) noexcept {
  return static_cast<std::size_t>(tier);
}

constexpr const char* name(Tier tier) noexcept {
  return tier == Tier::device ? "device"
         : tier == Tier::host ? "host"
         : tier == Tier::disk ? "disk"
                              : "remote";
}

// A set of tiers, one bit each.
struct TierSet {
  std::uint8_t bits = 0;

  constexpr bool has(Tier tier) const noexcept { return (bits >> index_of(tier)) & 1; }
  constexpr bool empty() const noexcept { return bits == 0; }
  constexpr TierSet with(Tier tier) const noexcept {
    return {static_cast<std::uint8_t>(bits | 1U << index_of(tier))};
  }
  constexpr TierSet without(Tier tier) const noexcept {
    return {static_cast<std::uint8_t>(bits & ~(1U << index_of(tier)))};
  }
  friend constexpr bool operator==(TierSet, TierSet) = default;
};

}  // namespace kvtier
