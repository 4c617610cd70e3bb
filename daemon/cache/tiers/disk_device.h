// One directory of the disk tier: its store, which of its slots are free, which block lies in
// which, and whether it can be used now. Owned by the control thread; outlives every operation of
// its store.
//
// A device that is offline or read-only keeps its blocks. What is erased meanwhile leaves the index
// at the latest before the device is online again, so only then are those slots free.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/cache/catalogue/block_index.h"
#include "daemon/telemetry.h"
#include "storage/store/disk_space.h"
#include "storage/store/record_store.h"

namespace kvtier::daemon {

class DiskDevice {
 public:
  struct Options {
    std::string directory;             // for people
    std::uint64_t segments_bytes = 0;  // cap for segments
    std::uint64_t segment_bytes = 0;
    std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
  };
  struct Counts {
    std::uint64_t failures = 0;   // reads and writes that the device failed
    std::uint64_t corrupt = 0;    // records that did not hold when they were read
    Histogram read_us, write_us;  // from the control thread and back to it
    Histogram lifetimes;          // seconds that blocks were here which are here no more
  };
  using Time = std::chrono::steady_clock::time_point;

  // `store` outlives this.
  DiskDevice(Options options, storage::RecordStore& store);

  storage::RecordStore& store() const noexcept { return *store_; }
  storage::DiskSpace& space() noexcept { return space_; }
  const storage::DiskSpace& space() const noexcept { return space_; }
  const std::string& directory() const noexcept { return options_.directory; }
  std::uint64_t cap_bytes() const noexcept { return options_.segments_bytes; }

  // Whether records can be written, and whether they can be read.
  bool online() const noexcept { return state_ == storage::DiskState::online; }
  bool readable() const noexcept { return state_ != storage::DiskState::offline; }
  storage::DiskState state() const noexcept { return state_; }
  // For people: "online", "read-only", "late" (not opened since the start, or not yet taken over)
  // or "offline".
  const char* state_name() const noexcept;
  const std::string& why() const noexcept { return why_; }
  void set_state(storage::DiskState state, const std::string& why);
  // Once it is online again, some of the slots are free that were erased meanwhile. False when all
  // of them are, or it has gone again.
  bool free_some();
  void set_why(const std::string& why) { why_ = online() ? std::string() : why; }
  std::uint64_t health_changes() const noexcept { return health_changes_; }

  void set_block(storage::DiskLocation at, BlockId block);
  // kNoBlock where the slot holds none.
  BlockId block_at(storage::DiskLocation at) const noexcept;
  // The slots of a segment, perhaps none.
  const std::vector<BlockId>& blocks_in(std::uint32_t segment) const noexcept {
    return blocks_in_[segment];
  }
  // The block in a slot of the segment may be evicted, or may be so no more.
  void set_evictable(std::uint32_t segment, bool evictable, std::uint32_t count);
  // Whether nothing in the segment must stay: no block that is held, no record on its way there,
  // no slot that is never to be used again.
  bool can_be_emptied(std::uint32_t segment) const;
  std::uint32_t segments() const noexcept { return static_cast<std::uint32_t>(blocks_in_.size()); }
  std::uint64_t blocks() const noexcept { return blocks_; }
  void prefetch(storage::DiskLocation at) const noexcept;

  // Removes index entries; then the slots, which hold no block, are free, and `done` runs.
  void erase(
      std::vector<Key> keys, std::vector<storage::DiskLocation> slots,
      std::function<void()> done = [] {});

  // Those that the store remembers; before any block is taken over.
  void leave_out_bad_places();
  // A slot without a block, of which a record or a write has failed: it is tested, and is free
  // then, which `done` is told, or bad for good. What cannot be tested now is not used until a
  // restart.
  void doubt(storage::DiskLocation at, std::function<void()> done);
  // The same once these index entries are gone.
  void doubt(storage::DiskLocation at, std::vector<Key> keys, std::function<void()> done);

  // From watch() to unwatch(), which says whether the slot kept its block all the time. At most
  // storage::kScrubsMax slots at a time.
  void watch(storage::DiskLocation at);
  bool unwatch(storage::DiskLocation at);

  // Whether a record may have been written that no flush has covered.
  bool unsynced() const noexcept { return writes_settled_ != writes_synced_; }
  void write_settled() noexcept { ++writes_settled_; }
  void flush(std::function<void(Result<void>)> done);

  Counts counts;

  // An operation is on its way to the store, and has come back. What is on its way while nothing
  // comes back says that the store's thread, or its device, is stuck.
  Time began() noexcept;
  void ended() noexcept;
  std::chrono::milliseconds stuck_for() const noexcept;  // 0 where nothing is on its way
  // Seconds, from 1 up; about once a second.
  void pass_time(std::uint32_t now) noexcept { now_ = now; }

 private:
  struct Watched {
    storage::DiskLocation at;
    bool disturbed = false;
  };
  void note_since(storage::DiskLocation at, bool gone);
  void tested(storage::DiskLocation at, const Result<void>& result);
  void erased(const std::vector<storage::DiskLocation>& slots, const Result<void>& result);

  Options options_;
  storage::RecordStore* store_;
  storage::DiskSpace space_;
  storage::DiskState state_ = storage::DiskState::online;
  std::string why_;
  std::uint64_t health_changes_ = 0;
  std::vector<std::vector<BlockId>> blocks_in_;    // by segment, then slot
  std::vector<std::vector<std::uint32_t>> since_;  // seconds of each; 0 or past its end: not known
  std::vector<std::uint32_t> evictable_in_;        // by segment
  std::uint64_t blocks_ = 0;
  std::uint32_t now_ = 0;
  std::uint64_t on_their_way_ = 0;
  Time moved_{};
  std::vector<storage::DiskLocation> free_when_online_;
  std::vector<Watched> watched_;
  std::uint64_t writes_settled_ = 0, writes_synced_ = 0;
};

}  // namespace kvtier::daemon
