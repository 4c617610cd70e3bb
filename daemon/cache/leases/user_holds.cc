#include "daemon/cache/leases/user_holds.h"

#include <utility>

#include "core/base/check.h"

namespace kvtier::daemon {

UserId UserHolds::user_of(SessionId session) const {
  const auto known = user_of_.find(session);
  return known == user_of_.end() ? kUsersOfSessions + session : known->second;
}

UserHolds::Sum UserHolds::sum_of(UserId user) const {
  const auto known = users_.find(user);
  return known == users_.end() ? Sum{} : known->second.sum_;
}

UserHolds::User& UserHolds::begin_lease(UserId user, std::uint16_t ns, std::size_t blocks) {
  const auto [at, is_new] = users_.try_emplace(user);
  User& of = at->second;
  if (is_new) of.table_ = std::exchange(spare_, {});
  ++of.sum_.leases;
  of.table_.expect(blocks);
  of.record_bytes_ = catalogue_.namespaces()[ns].layout.record_bytes;
  of.tenant_ = catalogue_.namespaces()[ns].tenant;
  for (User::Share& share : of.shares_) share.allowed = 0;
  return of;
}

void UserHolds::end_lease(UserId user, std::size_t blocks) {
  const auto known = users_.find(user);
  Sum& sum = known->second.sum_;
  sum.blocks -= blocks;
  if (--sum.leases != 0) return;
  KVTIER_CHECK(known->second.table_.empty());
  if (known->second.table_.bytes() <= kSpareBytesMax) spare_ = std::move(known->second.table_);
  users_.erase(known);
}

std::uint64_t UserHolds::allowed(const User& user, const User::Share& share) const {
  const std::uint64_t all = memory_.of(share.tier, share.part).allowance(user.tenant_);
  return all / 100 * leased_percent_ + all % 100 * leased_percent_ / 100;
}

bool UserHolds::hold(User& user, BlockId id, Tier tier) {
  Entry* const entry = user.table_.find(HoldTable::name_of(id, tier));
  if (entry->held == 0 && !catalogue_.hold(id, tier)) return false;
  ++entry->held;
  return true;
}

}  // namespace kvtier::daemon
