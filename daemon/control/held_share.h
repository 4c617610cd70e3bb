// How much of the memory tiers one session holds leased: each block once, however many of its
// leases have it. A block that is asked for twice costs nothing extra to count until the plain sum
// of all leases passes the bound; only from then on is every block remembered.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

#include "daemon/control/block_index.h"

namespace kvtier::daemon {

class HeldShare {
 public:
  // Counts a hold; false, and not counted, where the session would hold more than `allowed` bytes
  // of the tier. `each(visit)` calls visit(block, tier, bytes) for all that is counted so far. One
  // block it may always hold.
  template <class Each>
  bool add(BlockId block, Tier tier, std::uint64_t bytes, std::uint64_t allowed, Each&& each) {
    Part& part = parts_[index_of(tier)];
    if (!part.exact && part.sum != 0 && part.sum + bytes > allowed) {
      part.exact = true;
      part.low = allowed / 2;
      each([&](BlockId held, Tier in, std::uint64_t size) {
        if (in == tier) part.enter(held, size);
      });
    }
    if (part.exact && part.distinct != 0 && part.distinct + bytes > allowed &&
        !part.holds.contains(block.value)) {
      return false;
    }
    part.sum += bytes;
    if (part.exact) part.enter(block, bytes);
    return true;
  }

  void remove(BlockId block, Tier tier, std::uint64_t bytes) {
    Part& part = parts_[index_of(tier)];
    part.sum -= bytes;
    if (!part.exact) return;
    const auto held = part.holds.find(block.value);
    if (held != part.holds.end() && --held->second == 0) {
      part.holds.erase(held);
      part.distinct -= bytes;
    }
    // With room for as much again before all has to be remembered anew.
    if (part.sum <= part.low) part = {part.sum, 0, 0, false, {}};
  }

 private:
  struct Part {
    std::uint64_t sum = 0;       // of all leases
    std::uint64_t distinct = 0;  // of blocks; where exact
    std::uint64_t low = 0;
    bool exact = false;
    std::unordered_map<std::uint32_t, std::uint32_t> holds;  // by BlockId; where exact
    void enter(BlockId block, std::uint64_t bytes) {
      if (holds[block.value]++ == 0) distinct += bytes;
    }
  };
  std::array<Part, kTiers> parts_;
};

}  // namespace kvtier::daemon
