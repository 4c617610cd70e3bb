// What each user holds leased, and how much of it it may. Owned by the control thread.
//
// All sessions of a user are counted together, and each block once a tier, however many of its
// leases have it: a user is one hold of a block, so that none can use up the holds that there are
// for all, and it may hold at most a part of what its tenant may have of a memory tier, but one
// block always. A block is counted from when it is granted until the lease ends, and held from when
// it is in that tier. A user is known while it has leases.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>

#include "daemon/cache/catalogue/catalogue.h"
#include "daemon/cache/leases/hold_table.h"
#include "daemon/cache/tiers/memory_tiers.h"

namespace kvtier::daemon {

class UserHolds {
 public:
  // `leased_percent`: of what its tenant may have of a part of a memory tier, the part that one
  // user may hold leased.
  UserHolds(Catalogue& catalogue, MemoryTiers& memory, std::uint32_t leased_percent) noexcept
      : catalogue_(catalogue), memory_(memory), leased_percent_(leased_percent) {}

  // Whose the session is. One that was never said to begin is a user of its own.
  void begin_session(SessionId session, UserId user) { user_of_[session] = user; }
  void end_session(SessionId session) { user_of_.erase(session); }
  UserId user_of(SessionId session) const;

  struct Sum {
    std::size_t leases = 0;
    std::size_t blocks = 0;  // each once a lease
  };
  class User {
    friend class UserHolds;
    Sum sum_;
    HoldTable table_;
    std::map<std::pair<Tier, std::uint32_t>, std::uint64_t> bytes_;  // by part; each block once
  };
  Sum sum_of(UserId user) const;
  // The user, which is there until as many leases have ended as have begun.
  User& begin_lease(UserId user);
  User& known(UserId user) { return users_.at(user); }
  void add_blocks(User& user, std::size_t blocks) noexcept { user.sum_.blocks += blocks; }
  // One with so many blocks; all of them are uncounted.
  void end_lease(UserId user, std::size_t blocks);

  // A block of a lease that it has, or is about to have, in this tier; `part`: of the device tier,
  // the GPU. False, and not counted, where that is more than the user may hold of it.
  bool count(User& user, BlockId id, Tier tier, std::uint32_t part);
  static void uncount(User& user, BlockId id, Tier tier, std::uint32_t part);
  // Holds a block that is counted there, for one lease more. False at the bound on holds of one
  // placement.
  bool hold(User& user, BlockId id, Tier tier) {
    HoldTable::Entry* const entry = user.table_.find(HoldTable::name_of(id, tier));
    if (entry->held == 0 && !catalogue_.hold(id, tier)) return false;
    ++entry->held;
    return true;
  }
  void unhold(User& user, BlockId id, Tier tier) {
    HoldTable::Entry* const entry = user.table_.find(HoldTable::name_of(id, tier));
    if (--entry->held == 0) catalogue_.unhold(id, tier);
  }

 private:
  Catalogue& catalogue_;
  MemoryTiers& memory_;
  std::uint32_t leased_percent_;
  std::unordered_map<SessionId, UserId> user_of_;
  std::unordered_map<UserId, User> users_;  // which keeps them where they are
};

}  // namespace kvtier::daemon
