// The disk tier as the control thread sees it: which record lies in which slot, the queue of write-through,
// the reads under way. The I/O itself is the RecordStore's.
//
// What always holds: a block in the write-through queue holds its host placement, so its bytes stay until
// they are written; a block being read holds its disk placement, so its slot is not written meanwhile.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "daemon/control/catalogue.h"
#include "daemon/control/memory_tier.h"
#include "storage/disk/disk_space.h"
#include "storage/disk/record_store.h"

namespace kvtier::daemon {

class DiskTier {
 public:
  struct Options {
    std::uint64_t segments_bytes = 0;         // cap for segments
    std::uint64_t segment_bytes = 0;
    std::uint32_t write_queue_max = 0;        // blocks
    std::uint64_t write_queue_bytes_max = 0;  // of host memory held for them
    std::uint32_t writes_submitted_max = 64;
    bool admit = true;                        // write-through at all
  };
  struct Counts {
    std::uint64_t evictions = 0;
    std::uint64_t failures = 0;       // reads and writes that did not hold
    std::uint64_t dropped_writes = 0;
  };

  // `store` outlives this; null for a daemon without a disk tier.
  DiskTier(Options options, storage::RecordStore* store, Catalogue& catalogue, MemoryTier& host);

  bool present() const noexcept { return store_ != nullptr; }

  // Takes over what the store's index holds, oldest first. Returns the newest stamp.
  Result<std::uint64_t> recover();

  // Asks for `id`, which has a host placement, to be written. Dropped and counted when the queue is full.
  void write_through(BlockId id, const Key& parent);

  // Reads `id` from disk into `to`. Errors now: no_space. Until `done` the disk placement is held; `done`
  // must retire() the block after an error.
  Result<void> read(BlockId id, Place to, std::function<void(Result<void>)> done);

  // Forgets a block whose record did not hold; its slot is not used again.
  void retire(BlockId id);

  // Forgets unheld blocks on disk; their slots are free once the index has forgotten them too.
  void forget(std::span<const BlockId> ids);

  // `done` once every block queued before is written or given up, and all of it is on stable storage.
  void flush(std::function<void(Result<void>)> done);

  void touched(BlockId id);
  void write_stamps();   // hands the stamps of touched blocks to the store

  void remember_namespace(std::uint16_t ns);

  const Counts& counts() const noexcept { return counts_; }
  std::uint64_t reserved_bytes() const noexcept { return store_ ? space_.bytes_reserved() : 0; }
  std::uint64_t cap_bytes() const noexcept { return options_.segments_bytes; }
  std::size_t queued() const noexcept { return queue_.size() + writing_.size(); }

  // Called when this tier has ended its hold on a block, which may have been the last.
  std::function<void(BlockId)> on_unheld;

 private:
  struct Waiting {
    BlockId block;
    Key parent;
    std::uint64_t ticket;
  };
  struct Room {
    storage::DiskLocation at;
    std::optional<Key> replaces;
  };
  struct Writing {
    Waiting what;
    Room room;
    std::optional<Result<void>> result;
  };

  void pump();
  bool submit(const Waiting& next);
  std::optional<Room> room_for(std::uint64_t record_bytes);
  bool empty_a_segment_for(std::uint64_t record_bytes);
  void give_back(const Room& room);
  void forget(std::span<const BlockId> ids, bool emptying);
  void written(std::uint64_t ticket, const Result<void>& result);
  void settle(const Writing& done);
  void give_up(const Waiting& dropped);
  void let_go(const Waiting& what);
  void settle_flushes();
  // What the eviction order of recovered blocks follows from.
  struct Recovered {
    std::uint64_t last_access;
    std::uint32_t block_index;
    BlockId id;
  };
  Result<void> take_over_all(std::vector<Recovered>& order, std::vector<Key>& unusable);
  Result<BlockId> take_over(const storage::DiskEntry& entry);
  void prefetch_block(storage::DiskLocation at) const noexcept;
  void set_block(storage::DiskLocation at, BlockId block);
  storage::DiskLocation place_of(BlockId id) const noexcept;
  storage::DiskLocation unplace(BlockId id);

  Options options_;
  storage::RecordStore* store_;
  Catalogue& catalogue_;
  MemoryTier& host_;
  storage::DiskSpace space_;
  std::deque<Waiting> queue_;
  // By ticket. Completions are settled in this order, which is the order of the blocks in their prefixes
  // and so keeps the eviction order right.
  std::map<std::uint64_t, Writing> writing_;
  std::uint64_t next_ticket_ = 1;
  bool emptying_ = false;
  bool pumping_ = false;
  std::vector<std::vector<BlockId>> blocks_in_;  // by segment, then slot
  std::vector<Key> dirty_;                       // touched since the last write_stamps()
  struct Flush {
    std::uint64_t up_to;  // tickets below are settled
    std::function<void(Result<void>)> done;
  };
  std::deque<Flush> flushes_;
  std::uint64_t queued_bytes_ = 0;
  Counts counts_;
};

}  // namespace kvtier::daemon
