// What each user takes of the control thread: one bucket of requests for all its sessions, which
// outlives them, so that nobody has a full one again by connecting anew. Owned by the control
// thread.
//
// A bucket holds a second's worth. What is asked for past that is a debt, and while there is one
// nothing of the user is handled. A user whose bucket is full and who has no session is not
// remembered: there is nothing to remember.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>

namespace kvtier::daemon {

class Users {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  explicit Users(std::uint32_t requests_per_second) : rate_(requests_per_second) {}

  void session_begins(uid_t user, Time now) { ++user_of(user, now).sessions; }
  void session_ends(uid_t user, Time now);
  std::uint32_t sessions_of(uid_t user) const noexcept;

  void charge(uid_t user, double cost, Time now) { user_of(user, now).tokens -= cost; }
  // None: its requests are handled. Otherwise how long that takes.
  Clock::duration in_debt_for(uid_t user, Time now);

  std::size_t remembered() const noexcept { return users_.size(); }

 private:
  struct User {
    double tokens;
    Time at;
    std::uint32_t sessions = 0;
  };
  User& user_of(uid_t user, Time now);
  void refill(User& user, Time now) const noexcept;
  void forget_idle(Time now);

  double rate_;
  std::map<uid_t, User> users_;
};

}  // namespace kvtier::daemon
