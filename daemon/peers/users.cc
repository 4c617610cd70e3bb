#include "daemon/peers/users.h"

#include <algorithm>

#include "daemon/limits.h"

namespace kvtier::daemon {

void Users::refill(User& user, Time now) const noexcept {
  const double seconds = std::chrono::duration<double>(now - user.at).count();
  if (seconds <= 0) return;
  user.tokens = std::min(rate_, user.tokens + rate_ * seconds);
  user.at = now;
}

Users::User& Users::user_of(uid_t user, Time now) {
  const auto known = users_.find(user);
  if (known != users_.end()) {
    refill(known->second, now);
    return known->second;
  }
  if (users_.size() >= limits::kUsersRememberedMax) forget_idle(now);
  return users_.emplace(user, User{rate_, now}).first->second;
}

// Those without a session that have nothing to pay; where there is none such, who has least.
void Users::forget_idle(Time now) {
  for (auto& [id, user] : users_) refill(user, now);
  std::erase_if(users_, [&](const auto& user) {
    return user.second.sessions == 0 && user.second.tokens >= rate_;
  });
  if (users_.size() < limits::kUsersRememberedMax) return;
  auto least = users_.end();
  for (auto at = users_.begin(); at != users_.end(); ++at) {
    if (at->second.sessions != 0) continue;
    if (least == users_.end() || at->second.tokens > least->second.tokens) least = at;
  }
  if (least != users_.end()) users_.erase(least);
}

void Users::session_ends(uid_t user, Time now) {
  --user_of(user, now).sessions;
}

std::uint32_t Users::sessions_of(uid_t user) const noexcept {
  const auto known = users_.find(user);
  return known == users_.end() ? 0 : known->second.sessions;
}

Users::Clock::duration Users::in_debt_for(uid_t user, Time now) {
  const User& of = user_of(user, now);
  if (of.tokens > 0) return Clock::duration::zero();
  return std::chrono::ceil<Clock::duration>(std::chrono::duration<double>((1 - of.tokens) / rate_));
}

}  // namespace kvtier::daemon
