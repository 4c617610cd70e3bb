// Blocks on their way from disk, or from the remote tier, into the host tier, and the leases that
// wait for them. Owned by the control thread.
//
// A block is read once, however many leases want it; until the read has ended it is `loading`,
// which keeps it, and its slot belongs to nobody else. As it lands those who wait take their holds
// first; then what did not hold goes from where it was, and only then are they told, for by then
// nothing about the block changes any more.
//
// It holds nothing for anybody: that is Leases'.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/record/private_head.h"
#include "daemon/cache/catalogue/cache_counts.h"
#include "daemon/cache/remote/remote_tier.h"
#include "daemon/cache/room/room.h"

namespace kvtier::daemon {

using LeaseId = std::uint64_t;

class Loads {
 public:
  struct Waiter {
    LeaseId lease;
    std::uint32_t block;  // index in the lease
  };

  Loads(Catalogue& catalogue, MemoryTier& host, DiskTier& disk, RemoteTier& remote,
        Placements& placements, Room& room, CacheCounts& counts) noexcept
      : catalogue_(catalogue),
        host_(host),
        disk_(disk),
        remote_(remote),
        placements_(placements),
        room_(room),
        counts_(counts) {}

  // Where the block would be read from, which is in none of the memory tiers that the caller may
  // use; none where it cannot be read now.
  std::optional<Tier> source(TierSet reachable) const noexcept {
    if (reachable.has(Tier::disk)) return Tier::disk;
    if (reachable.has(Tier::remote) && remote_.readable()) return Tier::remote;
    return std::nullopt;
  }
  // The block's read is under way, or begins now. False where there is no room for it, or where it
  // is read from does not take it.
  bool ensure(BlockId id) { return catalogue_.block(id).loading || start(id); }
  // Blocks that leases wait for.
  std::size_t awaited() const noexcept { return waiting_.size(); }
  // One for which ensure() was true.
  void wait(BlockId id, Waiter waiter) { waiting_[id.value].push_back(waiter); }

  // The read of a block has ended: it is in the host tier where `good`.
  std::function<void(BlockId, std::span<const Waiter>, bool good)> on_landed;
  // What did not hold has gone.
  std::function<void(BlockId, std::span<const Waiter>)> on_settled;
  // And then, whoever waits: the read has ended.
  std::function<void(BlockId, bool good)> on_read;

 private:
  bool start(BlockId id);
  void landed(BlockId id, Place to, bool from_remote, Result<void> result);
  bool is_the_block(BlockId id, Place at);

  Catalogue& catalogue_;
  MemoryTier& host_;
  DiskTier& disk_;
  RemoteTier& remote_;
  PrivateHead head_;
  Placements& placements_;
  Room& room_;
  CacheCounts& counts_;
  std::unordered_map<std::uint32_t, std::vector<Waiter>> waiting_;  // by BlockId
};

}  // namespace kvtier::daemon
