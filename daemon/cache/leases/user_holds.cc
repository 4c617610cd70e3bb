#include "daemon/cache/leases/user_holds.h"

namespace kvtier::daemon {

UserId UserHolds::user_of(SessionId session) const {
  const auto known = user_of_.find(session);
  return known == user_of_.end() ? kUsersOfSessions + session : known->second;
}

UserHolds::Sum UserHolds::sum_of(UserId user) const {
  const auto known = users_.find(user);
  return known == users_.end() ? Sum{} : known->second.sum_;
}

UserHolds::User& UserHolds::begin_lease(UserId user) {
  User& of = users_[user];
  ++of.sum_.leases;
  return of;
}

void UserHolds::end_lease(UserId user, std::size_t blocks) {
  const auto known = users_.find(user);
  Sum& sum = known->second.sum_;
  sum.blocks -= blocks;
  if (--sum.leases == 0) users_.erase(known);
}

bool UserHolds::count(User& user, BlockId id, Tier tier, std::uint32_t part) {
  const std::uint64_t name = HoldTable::name_of(id, tier);
  if (HoldTable::Entry* const known = user.table_.find(name)) {
    ++known->leases;
    return true;
  }
  const std::uint64_t bytes = catalogue_.record_bytes(id);
  std::uint64_t& held = user.bytes_[{tier, part}];
  if (leased_percent_ < 100 && held != 0) {
    const std::uint64_t all = memory_.of(tier, part).allowance(catalogue_.tenant(id));
    const std::uint64_t allowed = all / 100 * leased_percent_ + all % 100 * leased_percent_ / 100;
    if (held + bytes > allowed) return false;
  }
  held += bytes;
  user.table_.add(name, bytes).leases = 1;
  return true;
}

void UserHolds::uncount(User& user, BlockId id, Tier tier, std::uint32_t part) {
  HoldTable::Entry* const entry = user.table_.find(HoldTable::name_of(id, tier));
  if (--entry->leases != 0) return;
  user.bytes_[{tier, part}] -= entry->bytes;
  user.table_.erase(entry);
}

}  // namespace kvtier::daemon
