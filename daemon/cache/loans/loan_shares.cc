#include "daemon/cache/loans/loan_shares.h"

#include <algorithm>

#include "daemon/limits.h"

namespace kvtier::daemon {
namespace {

constexpr std::uint64_t less(std::uint64_t from, std::uint64_t what) noexcept {
  return from - std::min(from, what);
}

}  // namespace

LoanShares::Allowed LoanShares::of(const Borrower& who) const {
  Allowed allowed;
  if (who.tier == Tier::disk || (who.tier == Tier::device && who.device >= memory_.devices()))
    return allowed;
  const MemoryTier& tier = memory_.of(who.tier, who.device);
  if (tier.cap_bytes() == 0 || catalogue_.namespaces()[who.ns].closed) return allowed;
  const auto standing = reservations_.standing(who);
  const std::uint64_t bytes = who.slot_bytes;
  const std::uint64_t me = standing.counted ? 0 : 1;
  const std::uint64_t loans = standing.process.loans + me;
  const std::uint64_t has = standing.process.bytes;
  const std::uint64_t has_of_tenant = standing.tenant_in_process.bytes;
  const std::uint64_t pot = less(tier.cap_bytes(), standing.part.bytes - has);
  const std::uint64_t tenants_pot =
      less(tier.allowance(who.tenant), standing.tenant.bytes - has_of_tenant);
  const std::uint64_t purse = pot / kPart, tenants_purse = tenants_pot / kPart;
  const std::uint64_t share = purse / loans;
  const std::uint64_t tenants_share = tenants_purse / (standing.tenant_in_process.loans + me);
  const std::uint64_t left = less(purse, has), tenants_left = less(tenants_purse, has_of_tenant);

  allowed.own = standing.own_slots;
  allowed.by_tenant = tenants_left < bytes && left >= bytes;
  allowed.loan_slots = std::max<std::uint64_t>(limits::kReservedPerProcessMax / loans, 1);
  allowed.loan_bytes = allowed.by_tenant ? tenants_share : std::min(share, tenants_share);
  const std::uint64_t fair = std::min(allowed.loan_bytes / bytes, allowed.loan_slots);
  allowed.due = std::max<std::uint64_t>(fair, 1);
  // For one slot that is larger than a share the others give up all theirs.
  if (fair == 0) allowed.loan_bytes = 0;
  allowed.more = std::min(std::min(left, tenants_left) / bytes,
                          less(limits::kReservedPerProcessMax, standing.process.slots));
  // And one larger than all that the process may have is lent all the same, where it is not much.
  const auto fits = [&](std::uint64_t lent, std::uint64_t of) {
    return lent == 0 || lent + bytes <= of / 2;
  };
  if (allowed.more == 0 && allowed.own == 0 && (bytes > purse || bytes > tenants_purse) &&
      fits(has, pot) && fits(has_of_tenant, tenants_pot)) {
    allowed.more = 1;
  }
  return allowed;
}

}  // namespace kvtier::daemon
