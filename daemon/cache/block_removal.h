// Blocks that go because they are wanted no more: an administrator's, or of a namespace that was
// closed or turned out to be another. Owned by the control thread.
//
// What somebody holds stays for now. With force it is found by nobody from then on, and goes with
// its last hold.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "daemon/cache/pins.h"
#include "daemon/cache/room/placements.h"

namespace kvtier::daemon {

class BlockRemoval {
 public:
  BlockRemoval(Catalogue& catalogue, DiskTier& disk, RemoteTier& remote, Pins& pins,
               Placements& placements) noexcept
      : catalogue_(catalogue), disk_(disk), remote_(remote), pins_(pins), placements_(placements) {}

  struct Removed {
    std::uint64_t blocks = 0;  // that lost at least one placement
    std::uint64_t in_use = 0;  // that kept one: leased, or on its way to or from disk
    std::uint64_t pinned = 0;  // that kept one because of a pin alone
  };
  // Takes blocks from these tiers as far as nobody holds them there; from the remote one, best
  // effort, whether they are known to be there or not. With `force` their pins end
  // and what is held goes with its last hold; `tiers` are then all.
  void remove(std::span<const BlockId> blocks, TierSet tiers, bool force, Removed& removed,
              Removal why);
  // The same without force, of all blocks or all of a namespace. Returns how many lost at least one
  // placement.
  std::uint64_t drop(std::optional<std::uint16_t> ns, TierSet tiers, Removal why);

 private:
  Catalogue& catalogue_;
  DiskTier& disk_;
  RemoteTier& remote_;
  Pins& pins_;
  Placements& placements_;
};

}  // namespace kvtier::daemon
