// Pins: placements that an administrator keeps from eviction for a while. A pin is one more hold on
// the placement, so that everything that respects a lease respects it; it ends with its lifetime,
// when it is taken back, or when the block's record is lost.
//
// The pins of a part of a tier (a GPU's memory, the host's, a disk) never hold more than a
// configured share of it. They live in memory: they end with the daemon. Owned by the control
// thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include "daemon/cache/catalogue/catalogue.h"

namespace kvtier::daemon {

class Pins {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Before the end of any other pin, and near enough to all times to be subtracted from them.
  static constexpr Time kAtOnce{};
  // Of a part of a tier: how many bytes pins may hold of it.
  using BytesMax = std::function<std::uint64_t(Tier, std::uint32_t device)>;

  Pins(Catalogue& catalogue, BytesMax bytes_max);

  // Pinned again, it ends at `until`. absent: not in that tier, or found by nobody any more;
  // no_room: the share of that part of the tier is taken.
  enum class Outcome { pinned, again, absent, no_room };
  Outcome pin(BlockId id, Tier tier, Time until);
  // False if it was not pinned.
  bool unpin(BlockId id, Tier tier);
  // The same with the next expire(), whatever time that is for: pins that end together leave the
  // eviction order as it was, in which a block's end before its parent's makes it the newer one.
  bool unpin_soon(BlockId id, Tier tier);
  void unpin_everywhere(BlockId id);
  // Ends at most `most` pins whose time has come, of those that end together heads of prefixes
  // first. True if there may be more of them.
  bool expire(Time now, std::uint32_t most);

  std::optional<Time> until(BlockId id, Tier tier) const;
  std::uint64_t blocks(Tier tier) const noexcept { return blocks_[index_of(tier)]; }
  std::uint64_t bytes(Tier tier) const noexcept { return bytes_[index_of(tier)]; }

 private:
  using Placement = std::uint64_t;                         // the block's number and the tier
  using End = std::tuple<Time, std::uint32_t, Placement>;  // with the block's place in its prefix
  End end_of(Placement at, Time until) const noexcept {
    return {until, catalogue_.block(block_of(at)).block_index, at};
  }
  void move_end(Placement at, Time until);
  static BlockId block_of(Placement at) noexcept {
    return BlockId(static_cast<std::uint32_t>(at >> 8));
  }
  static Placement placement(BlockId id, Tier tier) noexcept {
    return static_cast<Placement>(id.value) << 8 | index_of(tier);
  }

  Catalogue& catalogue_;
  BytesMax bytes_max_;
  std::unordered_map<Placement, Time> until_;
  std::set<End> by_end_;
  std::map<std::pair<Tier, std::uint32_t>, std::uint64_t> bytes_of_part_;
  std::array<std::uint64_t, kTiers> blocks_{}, bytes_{};
};

}  // namespace kvtier::daemon
