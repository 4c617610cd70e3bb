// What a lookup finds of a prompt.
#pragma once

#include <array>
#include <cstdint>

#include "kvtier/tier.h"

namespace kvtier {

struct Match {
  std::uint32_t blocks = 0;                      // leading blocks found
  std::array<std::uint32_t, kTiers> per_tier{};  // of those, by the fastest tier that holds each

  // Of those, what is in the remote tier alone, as far as the daemon knows.
  constexpr std::uint32_t remote() const noexcept {
    return blocks - per_tier[0] - per_tier[1] - per_tier[2];
  }
};

}  // namespace kvtier
