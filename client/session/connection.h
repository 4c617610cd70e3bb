// One connection to a daemon, from welcome to its end. Everything granted on it keeps a pointer to
// it and is void once it has ended. The session thread writes; any thread reads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "client/wire/directory.h"
#include "kvtier/client.h"

namespace kvtier::session {

class Connection {
 public:
  Connection(DirectoryView directory, std::chrono::milliseconds lease_time, Clock::time_point sent)
      : directory_(std::move(directory)),
        lease_time_(lease_time),
        sent_(sent.time_since_epoch().count()) {}

  const DirectoryView& directory() const noexcept { return directory_; }
  std::chrono::milliseconds lease_time() const noexcept { return lease_time_; }

  bool alive() const noexcept { return alive_.load(std::memory_order_acquire); }
  void end() noexcept { alive_.store(false, std::memory_order_release); }

  // Leases taken under one term are held together: a silence longer than the lease time ends the
  // term, even if messages flow again before anybody looks.
  std::uint32_t term() const noexcept { return term_.load(std::memory_order_acquire); }
  bool holds(std::uint32_t term_of_lease, Clock::time_point now) const noexcept {
    return alive() && now - sent() < lease_time_ && term() == term_of_lease;
  }
  // Everything was sent; `before` was read before the send.
  void sent_all(Clock::time_point before) noexcept {
    if (before - sent() >= lease_time_) term_.fetch_add(1, std::memory_order_acq_rel);
    sent_.store(before.time_since_epoch().count(), std::memory_order_release);
  }

 private:
  Clock::time_point sent() const noexcept {
    return Clock::time_point(Clock::duration(sent_.load(std::memory_order_acquire)));
  }

  const DirectoryView directory_;
  const std::chrono::milliseconds lease_time_;
  std::atomic<bool> alive_{true};
  std::atomic<std::uint32_t> term_{0};
  std::atomic<Clock::rep> sent_;
};

}  // namespace kvtier::session
