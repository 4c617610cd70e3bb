// How old the blocks of an extent or a segment are, from some of its slots that lie apart.
#pragma once

#include <algorithm>
#include <cstdint>

#include "daemon/cache/catalogue/catalogue.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

struct SampledAges {
  std::uint64_t there = 0, older = 0, sum = 0;  // blocks, those unused since a stamp, all stamps

  // Three of four: a little that is newer goes along, but two sizes in use do not take each other's
  // extents and segments in turns.
  bool mostly_older() const noexcept { return 4 * older >= 3 * there; }
  // When the blocks were last used, in the mean; 0 where there is none.
  std::uint64_t mean() const noexcept { return there == 0 ? 0 : sum / there; }
};

// `block_at(slot)`: kNoBlock where the slot holds none. `used`: the stamp.
template <class BlockAt>
SampledAges sampled_ages(const Catalogue& catalogue, std::uint32_t slots, std::uint64_t used,
                         BlockAt&& block_at) {
  const std::uint32_t step = std::max(slots / limits::kAgesLookedAt, 1U);
  SampledAges ages;
  for (std::uint32_t slot = 0; slot < slots; slot += step) {
    const BlockId block = block_at(slot);
    if (block == kNoBlock) continue;
    const std::uint64_t at = catalogue.block(block).last_access;
    ++ages.there;
    ages.older += at < used ? 1 : 0;
    ages.sum += at;
  }
  return ages;
}

}  // namespace kvtier::daemon
