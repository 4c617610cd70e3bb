// What the daemon is told every third of the lease time, which also renews all leases: what was
// counted since the last report, lookups that asked for no lease, and keys of blocks that did not
// hold.
//
// Owned by the session; any thread may note a bad key, all else is the session thread's. It holds:
// - Each count is reported once; what was not reported when a connection ended goes with the next.
// - At most kBadKeysMax keys wait.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "client/session/counters.h"
#include "client/session/thread/namespaces.h"

namespace kvtier::session {

class Reports {
 public:
  Reports(Conversation& conversation, const Namespaces& namespaces, const Counters& counters)
      : conversation_(conversation), namespaces_(namespaces), counters_(counters) {}

  void note_bad(const Key& key);

  // One is wanted at the next turn, and before a lease that it is about is released.
  void want_soon() noexcept { soon_ = true; }
  bool wanted_soon() const noexcept { return soon_; }
  bool is_due(Clock::time_point now) const noexcept { return soon_ || now >= next_; }
  Clock::time_point next() const noexcept { return next_; }

  // The connection that there is has begun, to a daemon of these features.
  void welcomed(std::uint64_t features, Clock::time_point now) {
    has_remote_ = (features & wire::kRemoteTier) != 0;
    begin(now);
  }
  void send(Clock::time_point now);

 private:
  void begin(Clock::time_point now);
  // What the daemon has been told.
  struct ReportedTiming {
    std::array<std::uint64_t, kLog2Buckets + 1> buckets{};
    std::uint64_t sum_us = 0, bytes = 0;
  };
  static void fill_timing(const Timing& timing, ReportedTiming& told,
                          wire::Report::Timing::Builder to);
  void fill(wire::Report::Builder report);

  Conversation& conversation_;
  const Namespaces& namespaces_;
  const Counters& counters_;
  std::mutex mutex_;  // of the keys
  std::vector<Key> bad_keys_;
  bool has_remote_ = false;
  bool soon_ = false;
  Clock::time_point next_{};
  struct {
    std::uint64_t header_faults = 0, proof_faults = 0, checksum_faults = 0;
    std::array<std::uint64_t, kDropReasons> dropped{};
    std::array<ReportedTiming, kTiersWithRemote> loads;
    ReportedTiming write_backs;
  } reported_;
};

}  // namespace kvtier::session
