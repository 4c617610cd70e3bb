// Writes to the remote tier: which blocks of the host tier go there, and the queue in which they
// wait for it. Owned by the control thread; the I/O is the store's.
//
// A block in the queue holds its host placement until it is written or given up, so its bytes stay.
// A record is of use only with all that come before it in its prefix: a block goes behind its
// parent, which is known to be there or goes before it; one whose parents are in host memory takes
// them along. The queue has a bound in blocks and in bytes. Nobody waits for it: what finds no room
// is counted, and offered again when it is used again.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "daemon/cache/remote/remote_knowledge.h"

namespace kvtier::daemon {

class RemoteWrites {
 public:
  // All outlive this; `store` may be null: nothing is written.
  RemoteWrites(const RemoteTierOptions& options, storage::RemoteStore* store, Catalogue& catalogue,
               RemoteKnowledge& knowledge, RemoteCounts& counts) noexcept
      : options_(options),
        store_(store),
        catalogue_(catalogue),
        knowledge_(knowledge),
        counts_(counts) {}
  RemoteWrites(const RemoteWrites&) = delete;

  // The block, which has a host placement, was committed.
  void committed(BlockId id);
  // The block was committed again.
  void seen_again(BlockId id) { seen_again(std::span(&id, 1)); }
  // Leading blocks of a prefix, or some that follow one another in it, were used again. With the
  // first that cannot go none behind it goes.
  void seen_again(std::span<const BlockId> prefix);
  // Whether seen_again() does anything for any block.
  bool minds_use() const noexcept {
    return store_ != nullptr && options_.admission != RemoteAdmission::warm;
  }
  // Somebody asks for it, whatever the admission. False: it cannot go now, or never.
  bool push(BlockId id);
  // Whether so many blocks more would be taken now.
  bool has_room(std::size_t blocks, std::uint64_t bytes) const noexcept;

  std::size_t queued() const noexcept { return queue_.size() + writing_.size(); }
  std::uint64_t queued_bytes() const noexcept { return queued_bytes_; }
  // The store's state has changed: what waits goes on, or is given up.
  void state_changed();

  // The hold on a block has ended, which may have been the last.
  std::function<void(BlockId)> on_unheld;
  // A block is there now.
  std::function<void(const Key&)> on_written;

 private:
  bool offer(BlockId id);
  std::optional<RemoteDrop> gather(BlockId id);
  bool enqueue(BlockId id);
  bool is_behind_its_parent(BlockId id) const noexcept;
  bool is_on_its_way(BlockId id) const noexcept { return under_way_.contains(id.value); }
  void pump();
  void submit(BlockId id);
  void written(BlockId id, const Result<void>& result, std::chrono::steady_clock::time_point began);
  void drop(RemoteDrop why) noexcept { ++counts_.drops[static_cast<std::size_t>(why)]; }
  void let_go(BlockId id);

  const RemoteTierOptions& options_;
  storage::RemoteStore* store_;
  Catalogue& catalogue_;
  RemoteKnowledge& knowledge_;
  RemoteCounts& counts_;
  std::deque<BlockId> queue_;
  std::unordered_set<std::uint32_t> writing_;    // sent
  std::unordered_set<std::uint32_t> under_way_;  // these, and those that wait
  std::uint64_t queued_bytes_ = 0;
  bool pumping_ = false;
  std::chrono::steady_clock::time_point paused_until_{};  // the store has refused one
  std::vector<BlockId> gathered_;  // what goes with a block, the last of the prefix first
};

}  // namespace kvtier::daemon
