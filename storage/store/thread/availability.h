// Whether the store is online, why not, and its way back.
//
// Owned by the loop, on the store's thread. Health decides what takes a device offline and when it
// is tried again; this carries it out. It holds:
// - Going offline fails at once all that is queued (`fail_queued`); what is in flight stays the
//   device's until it completes, and fails then.
// - It comes back only when nothing is in flight any more and `probe` has succeeded: everything
//   that a record needs works, and what could not be done meanwhile is done.
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
    std::function<Result<void>()> look;   // while online, every check_interval
    std::function<Result<void>()> probe;  // while offline, after waits that grow
  };
  Availability(StoreShared& shared, Steps steps);

  bool online() const noexcept { return health_.online(); }
  // What requests fail with while it is not online.
  Error offline() const;
  // `failed` as it is, or offline() where that explains it.
  Result<void> or_offline(const Result<void>& failed) const {
    return online() ? failed : Result<void>(offline());
  }

  // `code`: the errno behind it, 0 if none is known. Without effect while it is offline.
  void go_offline(const std::string& what, int code);
  void index_failed(const Error& error);
  // A transfer, or a sync with a place of no meaning.
  void transfer_ended(Health::Transfer kind, const BlockDevice::Completion& completion,
                      DiskLocation at);

  // Who is told of changes, and at once if it is offline.
  void tell(HealthChanged changed);

  // The part of a turn: a look or a probe where one is due.
  void look_after();
  BlockDevice::Duration until_next_look() const;

 private:
  void announce(bool online, const std::string& why);

  StoreShared& shared_;
  const Steps steps_;
  Health health_;
  std::string why_;
  HealthChanged changed_;
  Health::Clock::time_point next_look_;
};

}  // namespace kvtier::storage
