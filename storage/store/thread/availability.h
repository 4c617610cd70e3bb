// What can be done with the store's device, why not more, and its way back.
//
// Owned by the loop, on the store's thread. Health decides what takes a device offline and when it
// is tried again; this carries it out. It holds:
// - Going offline fails at once all that is queued (`fail_queued`), becoming read-only the writes
// of
//   it; what is in flight stays the device's until it completes, and fails then.
// - It comes back from offline only when nothing is in flight any more, from read-only while reads
//   go on, and only when `probe` has succeeded: everything that a record needs works, and what
//   could not be done meanwhile is done.
// - The control thread hears of a change before it hears of the failures that the change explains.
// It does no I/O of its own.
#pragma once

#include <functional>
#include <string>

#include "storage/store/health.h"
#include "storage/store/thread/shared.h"

namespace kvtier::storage {

class Availability {
 public:
  struct Steps {
    std::function<void(const Error& why)> fail_queued;
    std::function<void(const Error& why)> fail_writes;
    std::function<Result<void>()> look;  // unless it is offline, every check_interval
    // While it is not online, after waits that grow.
    std::function<Result<void>(DiskState now)> probe;
  };
  Availability(StoreShared& shared, Steps steps);

  // Whether records can be written, and whether they can be read.
  bool online() const noexcept { return health_.state() == DiskState::online; }
  bool readable() const noexcept { return health_.state() != DiskState::offline; }
  // What requests fail with while it is not online.
  Error offline() const;
  // `failed` as it is, or offline() where that explains it: of a write, and of a read.
  Result<void> or_offline(const Result<void>& failed) const {
    return online() ? failed : Result<void>(offline());
  }
  Result<void> or_unreadable(const Result<void>& failed) const {
    return readable() ? failed : Result<void>(offline());
  }

  // `code`: the errno behind it, 0 if none is known. Without effect where it is as bad already.
  void go_offline(const std::string& what, int code) { fall_to(DiskState::offline, what, code); }
  void go_read_only(const std::string& what, int code) {
    fall_to(DiskState::read_only, what, code);
  }
  void index_failed(const Error& error);
  // A transfer, or a sync with a place of no meaning.
  void transfer_ended(Health::Transfer kind, const BlockDevice::Completion& completion,
                      DiskLocation at);

  // Who is told of changes, and at once if it is offline.
  void tell(RecordStore::Changed changed);

  // The part of a turn: a look or a probe where one is due.
  void look_after();
  BlockDevice::Duration until_next_look() const;

 private:
  void fall_to(DiskState state, const std::string& what, int code);
  void announce(const std::string& why);

  StoreShared& shared_;
  const Steps steps_;
  Health health_;
  std::string why_;
  RecordStore::Changed changed_;
  Health::Clock::time_point next_look_;
};

}  // namespace kvtier::storage
