// Blocks that come from disk, or from the remote tier, to the host tier ahead of the request that
// will need them. Owned by the control thread.
//
// They wait in a queue, of which each user may have a part of the host tier at most, and only a few
// of them are being read at a time: a lease's own read never stands behind more than those. While
// any lease waits for the disks, one is read at a time. A block that has come is held by nobody:
// it lies behind its parent in the eviction order, and what became of it is counted.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "daemon/cache/hints/hint_counts.h"
#include "daemon/cache/leases/loads.h"
#include "daemon/cache/tiers/later.h"

namespace kvtier::daemon {

class Prefetches {
 public:
  // `percent`: of what its tenant may have of the host tier, what one user's prefetches may have
  // waiting or on their way. All outlive this; `later` may be set after this has been made.
  Prefetches(Catalogue& catalogue, MemoryTier& host, Loads& loads, HintCounts& counts,
             std::uint32_t percent, const Later& later);
  Prefetches(const Prefetches&) = delete;

  // Blocks that follow one another and are in no memory tier.
  void ask(UserId user, std::span<const BlockId> blocks);

  // Blocks that wait, or are being read for nobody else.
  std::uint64_t blocks() const noexcept { return queue_.size() + reading_.size(); }

 private:
  struct Waiting {
    BlockId id;
    Key key;  // the number may be another block's by the time
    std::uint16_t ns = 0;
    UserId user = 0;
    std::uint64_t bytes = 0;
  };
  bool take(UserId user, BlockId id);
  bool has_room(std::uint64_t bytes) const noexcept;
  void pump();
  void pump_later();
  void start(const Waiting& next);
  void landed(BlockId id, bool good);
  void end(const Waiting& what, HintOutcome outcome);

  Catalogue& catalogue_;
  MemoryTier& host_;
  Loads& loads_;
  HintCounts& counts_;
  std::uint32_t percent_;
  const Later& later_;
  std::deque<Waiting> queue_;
  std::unordered_set<std::uint32_t> waiting_;                // the blocks in queue_
  std::unordered_map<std::uint32_t, Waiting> reading_;       // by BlockId
  std::unordered_map<UserId, std::uint64_t> bytes_of_user_;  // of both
  std::uint64_t reading_bytes_ = 0;
  bool pumping_ = false;
  bool pumps_later_ = false;
};

}  // namespace kvtier::daemon
