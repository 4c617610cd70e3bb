// Who asks, in the daemon's own counts: a session, and its user, which is the kernel's number or
// one of those above that stand for nobody.
#pragma once

#include <cstdint>

namespace kvtier::daemon {

using SessionId = std::uint64_t;

using UserId = std::uint64_t;
inline constexpr UserId kUsersOfSessions = 1ULL << 32;  // and the session: one that has no user
inline constexpr UserId kNoUser = ~0ULL;

}  // namespace kvtier::daemon
