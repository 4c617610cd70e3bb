// Erases from the index: each is done when its commit is and every write that it overtook has
// ended, for only then are their slots the caller's again.
//
// Owned by the loop, on the store's thread. It holds:
// - An erase counts as pending from begin() until its last part has ended; a flush that came after
//   it waits for that.
// - Offline, the entries are left for the return; what is in flight is waited for all the same.
#pragma once

#include <cstddef>
#include <memory>

#include "storage/store/thread/flushes.h"
#include "storage/store/thread/index_changes.h"
#include "storage/store/unsynced.h"

namespace kvtier::storage {

class Erases {
 public:
  Erases(StoreShared& shared, Availability& availability, IndexChanges& changes, Flushes& flushes,
         Unsynced& unsynced)
      : shared_(shared),
        availability_(availability),
        changes_(changes),
        flushes_(flushes),
        unsynced_(unsynced) {}

  // Between the two, the writes that it overtakes are told of it.
  std::shared_ptr<PendingErase> begin(EraseCommand& command);
  void commit(const std::shared_ptr<PendingErase>& erase, std::vector<Key> keys);
  // A write that it had overtaken has ended.
  void end_part(PendingErase& erase);

  std::size_t pending() const noexcept { return pending_; }

 private:
  StoreShared& shared_;
  Availability& availability_;
  IndexChanges& changes_;
  Flushes& flushes_;
  Unsynced& unsynced_;
  std::size_t pending_ = 0;
};

}  // namespace kvtier::storage
