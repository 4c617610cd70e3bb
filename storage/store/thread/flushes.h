// Flushes: the segments' files first, then the index, so that what a durable index names is durable
// too.
//
// Owned by the loop, on the store's thread. It holds:
// - A flush waits until every write and erase that came before it has ended, then syncs one file
//   after the other; flushes end in the order in which they came.
// - One sync is in flight at a time; it has the tag kSyncTag.
// - Offline it fails, and the files stay unsynced for the first flush after the return.
// - What a failed sync leaves in doubt leaves the index and is told before its flush fails.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "storage/store/thread/index_changes.h"
#include "storage/store/thread/segment_files.h"
#include "storage/store/unsynced.h"

namespace kvtier::storage {

class Flushes {
 public:
  Flushes(StoreShared& shared, Availability& availability, SegmentFiles& files,
          IndexChanges& changes, Unsynced& unsynced)
      : shared_(shared),
        availability_(availability),
        files_(files),
        changes_(changes),
        unsynced_(unsynced) {}

  // `before`: the writes and erases that have been taken and not ended.
  void take(FlushCommand&& command, std::uint64_t before);
  // What a write or an erase remembers when it is taken, for end_before() when it has ended.
  std::uint64_t seen() const noexcept { return seen_; }
  void end_before(std::uint64_t flushes_before);

  void advance();
  void land_sync(const BlockDevice::Completion& completion);
  // Who is told of records that are given up.
  void tell(RecordsLost lost) { lost_ = std::move(lost); }

  bool is_idle() const noexcept { return flushes_.empty(); }

 private:
  struct Flush {
    std::uint64_t number = 0;
    RecordStore::Done<void> done;
    std::uint64_t waiting = 0;
    bool started = false;
    std::vector<std::uint32_t> files;
    Result<void> result;
  };

  void start(Flush& flush);
  void sync_next_file(Flush& flush);
  void give_up_doubtful();

  StoreShared& shared_;
  Availability& availability_;
  SegmentFiles& files_;
  IndexChanges& changes_;
  Unsynced& unsynced_;
  RecordsLost lost_;
  std::vector<LostRecord> doubtful_;
  std::deque<Flush> flushes_;
  std::uint64_t seen_ = 0;
};

}  // namespace kvtier::storage
