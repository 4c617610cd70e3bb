// What each user holds leased, and how much of it it may. Owned by the control thread.
//
// All sessions of a user are counted together, and each block once a tier, however many of its
// leases have it: a user is one hold of a block, so that none can use up the holds that there are
// for all, and it may hold at most a part of what its tenant may have of a memory tier, but one
// block always. A block is counted from when it is granted until the lease ends, and held from when
// it is in that tier. A user is known while it has leases.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

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
    // What it holds of a part of a memory tier, each block once.
    struct Share {
      Tier tier;
      std::uint32_t part;
      std::uint64_t bytes = 0;
      std::uint64_t allowed = 0;  // of the lease that is granted now
    };
    Sum sum_;
    HoldTable table_;
    std::vector<Share> shares_;       // a few
    std::uint64_t record_bytes_ = 0;  // of the lease that is granted now
    TenantId tenant_ = 0;
  };
  Sum sum_of(UserId user) const;
  // The user, which is there until as many leases have ended as have begun. At most so many blocks
  // of this namespace will be counted.
  User& begin_lease(UserId user, std::uint16_t ns, std::size_t blocks);
  User& known(UserId user) { return users_.at(user); }
  void add_blocks(User& user, std::size_t blocks) noexcept { user.sum_.blocks += blocks; }
  // One with so many blocks; all of them are uncounted.
  void end_lease(UserId user, std::size_t blocks);

  // A block of the lease that has begun, in this tier; `part`: of the device tier, the GPU. False,
  // and not counted, where that is more than the user may hold of it.
  bool count(User& user, BlockId id, Tier tier, std::uint32_t part) {
    return counted(user, id, tier, part) != nullptr;
  }
  // The same of one that is there, and holds it (Catalogue::hold_in_order()). False as well at the
  // bound on holds of one placement.
  bool count_held(User& user, BlockId id, Tier tier, std::uint32_t part) {
    Entry* const entry = counted(user, id, tier, part);
    if (entry == nullptr) return false;
    if (entry->held == 0 && !catalogue_.hold_in_order(id, tier)) {
      uncount(user, entry, tier, part);
      return false;
    }
    ++entry->held;
    return true;
  }
  // Holds a block that is counted and has come. False at that bound.
  bool hold(User& user, BlockId id, Tier tier);
  // Of a block of a lease that ends, counted as this one; `held`: it was held as well
  // (Catalogue::unhold_out_of_order()).
  void uncount(User& user, BlockId id, Tier tier, std::uint32_t part, bool held) {
    Entry* const entry = user.table_.find(HoldTable::name_of(id, tier));
    if (held && --entry->held == 0) catalogue_.unhold_out_of_order(id, tier);
    uncount(user, entry, tier, part);
  }

 private:
  using Entry = HoldTable::Entry;
  Entry* counted(User& user, BlockId id, Tier tier, std::uint32_t part) {
    Entry& entry = user.table_.at(HoldTable::name_of(id, tier));
    if (entry.leases++ != 0) return &entry;
    entry.bytes = user.record_bytes_;
    User::Share& share = share_of(user, tier, part);
    if (may_have_more(user, share)) {
      share.bytes += entry.bytes;
      return &entry;
    }
    user.table_.erase(&entry);
    return nullptr;
  }
  static void uncount(User& user, Entry* entry, Tier tier, std::uint32_t part) {
    if (--entry->leases != 0) return;
    share_of(user, tier, part).bytes -= entry->bytes;
    user.table_.erase(entry);
  }
  static User::Share& share_of(User& user, Tier tier, std::uint32_t part) {
    for (User::Share& share : user.shares_) {
      if (share.tier == tier && share.part == part) return share;
    }
    return user.shares_.emplace_back(User::Share{tier, part});
  }
  // One block it always may.
  bool may_have_more(const User& user, User::Share& share) const {
    if (leased_percent_ >= 100 || share.bytes == 0) return true;
    if (share.allowed == 0) share.allowed = allowed(user, share);
    return share.bytes + user.record_bytes_ <= share.allowed;
  }
  std::uint64_t allowed(const User& user, const User::Share& share) const;

  Catalogue& catalogue_;
  MemoryTiers& memory_;
  std::uint32_t leased_percent_;
  std::unordered_map<SessionId, UserId> user_of_;
  std::unordered_map<UserId, User> users_;  // which keeps them where they are
  // Of the last user who had no lease left: a table of the size that is needed, if that is not
  // much.
  static constexpr std::size_t kSpareBytesMax = 1 << 20;
  HoldTable spare_;
};

}  // namespace kvtier::daemon
