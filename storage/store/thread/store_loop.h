// The store's own thread: takes commands, keeps the device busy, keeps the index in step. It owns
// the parts that do so, wires them together and has the turn; each part says what it holds to.
//
// A turn of the loop: take commands, commit their index changes in one batch, start reads, then
// writes, then scrubs, wait; drain the completions into a list, start what they made room for, and
// only then look at what completed. So no callback runs while the device is being walked.
#pragma once

#include "storage/index/index.h"
#include "storage/index/segments.h"
#include "storage/index/store_directory.h"
#include "storage/store/place_tests.h"
#include "storage/store/thread/availability.h"
#include "storage/store/thread/erases.h"
#include "storage/store/thread/flushes.h"
#include "storage/store/thread/index_changes.h"
#include "storage/store/thread/reads.h"
#include "storage/store/thread/ring_extents.h"
#include "storage/store/thread/scrubs.h"
#include "storage/store/thread/segment_files.h"
#include "storage/store/thread/shared.h"
#include "storage/store/thread/writes.h"
#include "storage/store/workers.h"

namespace kvtier::storage {

class StoreLoop {
 public:
  // All outlive the loop, and all but the counters are the loop's alone while run() runs.
  StoreLoop(const RecordStoreOptions& options, StoreDirectory& directory, BlockDevice& device,
            Index& index, Segments& segments, Erasures& erasures, BadPlaces& bad,
            StoreCounters& counters, RecordStore::Post post);

  // Any thread.
  void send(StoreCommand command) { shared_.inbox.send(std::move(command)); }
  // The thread's main function: until a CloseCommand has been carried out.
  void run();

 private:
  void take_commands();
  void take(ReadCommand&& command) { reads_.take(std::move(command)); }
  void take(WriteCommand&& command) { writes_.take(std::move(command)); }
  void take(ScrubCommand&& command) { scrubs_.take(std::move(command)); }
  void take(PlaceTestCommand&& command) { place_tests_.take(std::move(command)); }
  void take(EraseCommand&& command);
  void take(EraseForGoodCommand&& command) { changes_.erase_for_good(std::move(command.what)); }
  void take(TouchCommand&& command);
  void take(NamespaceCommand&& command) { changes_.put_namespace(std::move(command)); }
  void take(FlushCommand&& command);
  void take(RegisterCommand&& command) { extents_.add(command); }
  void take(PopulatedCommand&& command) { extents_.populated(command); }
  void take(ForgetCommand&& command) { extents_.forget(std::move(command)); }
  void take(HealthCommand&& command) { availability_.tell(std::move(command.changed)); }
  void take(LostCommand&& command) { flushes_.tell(std::move(command.lost)); }
  void take(ChecksumCommand&& command);
  void take(CloseCommand&& command);

  void start_transfers();
  void bound_unsynced();
  void settle(const BlockDevice::Completion& completion);
  void end_landed();
  void fail_queued(const Error& why);
  Result<void> look();
  Result<void> probe(DiskState now);
  bool is_over() const;

  StoreDirectory& directory_;
  Index& index_;
  StoreShared shared_;
  Availability availability_;
  SegmentFiles files_;
  IndexChanges changes_;
  Unsynced unsynced_;
  Flushes flushes_;
  Erases erases_;
  RingExtents extents_;
  Reads reads_;
  Scrubs scrubs_;
  PlaceTests place_tests_;
  Writes writes_;
  Workers workers_;  // last: they end before what they report to
};

}  // namespace kvtier::storage
