#include "daemon/cache/loans/recalls.h"

#include <algorithm>

namespace kvtier::daemon {
namespace {

bool same_part(const Borrower& a, const Borrower& b) noexcept {
  return a.tier == b.tier && a.device == b.device;
}

}  // namespace

bool Recalls::add_for(const Borrower& who, BySession& recalls) {
  const auto allowed = shares_.of(who);
  if (allowed.own >= allowed.due) return false;
  const std::size_t before = recalls.size();
  if (allowed.more == 0) {
    from_process(who, allowed, recalls);
    return recalls.size() > before;
  }
  // Its process has left it something: it is the tier that has no room, or the tenant.
  MemoryTier& tier = memory_.of(who.tier, who.device);
  const std::uint64_t quota = tier.limits(who.tenant).quota;
  if (quota < tier.cap_bytes() && tier.used_by(who.tenant) + who.slot_bytes > quota) {
    from_all(who, true, recalls);
    return recalls.size() > before;
  }
  if (tier.over_cap()) return false;
  if (const auto extent = emptying_.await_loans_for(tier, who.tenant, who.slot_bytes)) {
    from_extent(tier, *extent, recalls);
    return true;
  }
  from_all(who, false, recalls);
  return recalls.size() > before;
}

void Recalls::from_process(const Borrower& who, const LoanShares::Allowed& allowed,
                           BySession& recalls) const {
  reservations_.each_loan_of(who.process, [&](const Reservations::Loan& loan) {
    if (!same_part(loan.to, who) || loan.to == who) return;
    if (allowed.by_tenant && loan.to.tenant != who.tenant) return;
    const std::uint64_t keep =
        std::min(allowed.loan_bytes / loan.to.slot_bytes, allowed.loan_slots);
    if (loan.slots.size() <= keep) return;
    recalls[loan.to.session].keeps.push_back(
        {loan.to.ns, loan.to.tier, static_cast<std::uint32_t>(keep)});
  });
}

// All that are lent more than an even share of a quarter of the tier, or of the tenant's quota.
void Recalls::from_all(const Borrower& who, bool of_tenant, BySession& recalls) const {
  const MemoryTier& tier = memory_.of(who.tier, who.device);
  const auto standing = reservations_.standing(who);
  const std::uint64_t all = of_tenant ? tier.allowance(who.tenant) : tier.cap_bytes();
  const std::uint64_t loans =
      std::max<std::uint64_t>(of_tenant ? standing.tenant.loans : standing.part.loans, 1);
  reservations_.each_loan([&](const Reservations::Loan& loan) {
    if (!same_part(loan.to, who) || loan.to == who) return;
    if (of_tenant && loan.to.tenant != who.tenant) return;
    const std::uint64_t keep = all / LoanShares::kPart / loans / loan.to.slot_bytes;
    if (loan.slots.size() <= keep) return;
    recalls[loan.to.session].keeps.push_back(
        {loan.to.ns, loan.to.tier, static_cast<std::uint32_t>(keep)});
  });
}

void Recalls::from_extent(const MemoryTier& tier, ExtentId extent, BySession& recalls) const {
  if (tier.use_of(extent).lent == 0) return;
  reservations_.each_loan([&](const Reservations::Loan& loan) {
    if (loan.to.tier != tier.tier() || loan.to.device != tier.device() || loan.slots.empty())
      return;
    auto& extents = recalls[loan.to.session].extents;
    if (extents.empty() || extents.back() != extent) extents.push_back(extent);
  });
}

void Recalls::add_for_cap(BySession& recalls) {
  memory_.each([&](MemoryTier& tier) {
    if (tier.over_cap() && tier.draining()) from_extent(tier, *tier.draining(), recalls);
  });
}

}  // namespace kvtier::daemon
