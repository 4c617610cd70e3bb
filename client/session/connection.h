// One connection to a daemon, from welcome to its end. Everything granted on it keeps a pointer to
// it and is void once it has ended. The session thread writes; any thread reads.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdint>

#include "core/base/fd.h"
#include "core/wire/directory.h"
#include "kvtier/client.h"

namespace kvtier::session {

class Connection {
 public:
  // `socket`: a copy of the session's own.
  Connection(UniqueFd socket, DirectoryView directory, std::chrono::milliseconds lease_time,
             Clock::time_point sent)
      : socket_(std::move(socket)),
        directory_(std::move(directory)),
        lease_time_(lease_time),
        sent_(sent.time_since_epoch().count()) {}

  const DirectoryView& directory() const noexcept { return directory_; }
  std::chrono::milliseconds lease_time() const noexcept { return lease_time_; }

  // As far as the session thread has noticed.
  bool alive() const noexcept { return alive_.load(std::memory_order_acquire); }
  // The daemon sees the end too, however many copies of the socket there are.
  void end() noexcept {
    alive_.store(false, std::memory_order_release);
    ::shutdown(socket_.get(), SHUT_RDWR);
  }

  // Leases taken under one term are held together: a silence longer than the lease time ends the
  // term, even if messages flow again before anybody looks.
  std::uint32_t term() const noexcept { return term_.load(std::memory_order_acquire); }
  // The kernel is asked as well: a daemon that has died may have a successor, which gives slots
  // away, before the session thread gets to run. The successor starts after the process has ended,
  // and with the process its end of the socket.
  bool holds(std::uint32_t term_of_lease, Clock::time_point now) const noexcept {
    return alive() && now - sent() < lease_time_ && term() == term_of_lease && !hung_up();
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

  bool hung_up() const noexcept {
    pollfd peer{socket_.get(), POLLRDHUP, 0};
    int ready;
    do {
      ready = ::poll(&peer, 1, 0);
    } while (ready < 0 && errno == EINTR);
    return ready != 0;  // what cannot be asked is not held
  }

  const UniqueFd socket_;
  const DirectoryView directory_;
  const std::chrono::milliseconds lease_time_;
  std::atomic<bool> alive_{true};
  std::atomic<std::uint32_t> term_{0};
  std::atomic<Clock::rep> sent_;
};

}  // namespace kvtier::session
