// Loans: how many slots may be lent to whom, and whose have to come home so that another gets its
// due.
//
// A process may have lent a quarter of what the others leave it of a part of a tier, and the same
// of its tenants' quotas: of all parts, then, something is left for the next process, whatever
// those before it do. Its sessions' namespaces share that evenly once they want more than there is;
// until then each may have all of it.
#include <algorithm>

#include "daemon/cache/block_cache.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

using Order = Catalogue::Order;

namespace {

constexpr std::uint64_t less(std::uint64_t from, std::uint64_t what) noexcept {
  return from - std::min(from, what);
}

constexpr std::uint64_t kPart = 4;  // of what there is, for one process

bool same_part(const Borrower& a, const Borrower& b) noexcept {
  return a.tier == b.tier && a.device == b.device;
}

}  // namespace

Borrower BlockCache::borrower(SessionId session, ProcessId process, std::uint16_t ns, Tier tier,
                              std::uint32_t device, std::uint64_t client) const {
  const KnownNamespace& known = catalogue_.namespaces()[ns];
  return {.process = process,
          .client = client,
          .session = session,
          .ns = ns,
          .tenant = known.tenant,
          .tier = tier,
          .device = tier == Tier::device ? device : 0,
          .slot_bytes = known.layout.record_bytes};
}

BlockCache::Allowed BlockCache::allowed(const Borrower& who) const {
  Allowed allowed;
  if (who.tier == Tier::disk || (who.tier == Tier::device && who.device >= devices_.size()))
    return allowed;
  const MemoryTier& tier = who.tier == Tier::device ? *devices_[who.device] : host_;
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

std::vector<SlotName> BlockCache::lend(const Borrower& to, std::uint32_t count, bool contended) {
  std::vector<SlotName> slots;
  const Allowed allowed = this->allowed(to);
  std::uint64_t most = std::min<std::uint64_t>(allowed.more, count);
  if (contended) most = std::min(most, less(allowed.due, allowed.own));
  if (most == 0) return slots;
  MemoryTier& tier = memory(to.tier, to.device);
  EvictionAhead ahead(catalogue_, to.tier);
  while (slots.size() < most) {
    ahead.step([&] { return victim(tier, to.tenant, to.slot_bytes, true); });
    const auto at = room(tier, to.tenant, to.slot_bytes);
    if (!at) break;
    tier.table(*at).set_reserved(at->slot, {to.process.pid, to.process.start_time, to.client});
    tier.set_lent(*at, true);
    reservations_.add(slot_name(*at), to);
    slots.push_back(slot_name(*at));
  }
  return slots;
}

bool BlockCache::has_less_than_due(const Borrower& who) const {
  const Allowed allowed = this->allowed(who);
  return allowed.own < allowed.due;
}

bool BlockCache::take_back(SlotName slot, SessionId session, Tier& tier) {
  if (!reservations_.take(slot, session, tier)) return false;
  const Place at = place_named(slot);
  memory(tier, at).set_lent(at, false);
  return true;
}

void BlockCache::abandon(SessionId session, SlotName slot) {
  Tier tier;
  const Place at = place_named(slot);
  if (take_back(slot, session, tier)) memory(tier, at).give_back(at);
}

void BlockCache::end_session(SessionId session) {
  release_all(session);
  user_of_.erase(session);
  for (const auto& slot : reservations_.end_session(session)) {
    const Place at = place_named(slot.slot);
    memory(slot.tier, at).set_lent(at, false);
    memory(slot.tier, at).table(at).set_quarantined(at.slot);
  }
}

void BlockCache::end_process(ProcessId process) {
  end(reservations_.end_process(process));
}

void BlockCache::let_go(ProcessId process, std::uint64_t client) {
  end(reservations_.let_go(process, client));
}

void BlockCache::end(std::span<const Reservations::Slot> slots) {
  for (const auto& slot : slots) {
    const Place at = place_named(slot.slot);
    memory(slot.tier, at).give_back(at);
  }
}

// ---- recalls

bool BlockCache::recall_for(const Borrower& who, Recalls& recalls) {
  const Allowed allowed = this->allowed(who);
  if (allowed.own >= allowed.due) return false;
  const std::size_t before = recalls.size();
  if (allowed.more == 0) {
    recall_from_process(who, allowed, recalls);
    return recalls.size() > before;
  }
  // Its process has left it something: it is the tier that has no room, or the tenant.
  MemoryTier& tier = memory(who.tier, who.device);
  const std::uint64_t quota = tier.limits(who.tenant).quota;
  if (quota < tier.cap_bytes() && tier.used_by(who.tenant) + who.slot_bytes > quota) {
    recall_from_all(who, true, recalls);
    return recalls.size() > before;
  }
  if (tier.over_cap()) return false;
  if (!tier.draining()) {
    const auto extent = extent_to_recall(tier, who.tenant, who.slot_bytes);
    if (extent) tier.drain(*extent);
  }
  if (tier.draining()) {
    recall_extent(tier, *tier.draining(), recalls);
    return true;
  }
  recall_from_all(who, false, recalls);
  return recalls.size() > before;
}

void BlockCache::recall_from_process(const Borrower& who, const Allowed& allowed,
                                     Recalls& recalls) const {
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
void BlockCache::recall_from_all(const Borrower& who, bool of_tenant, Recalls& recalls) const {
  const MemoryTier& tier = who.tier == Tier::device ? *devices_[who.device] : host_;
  const auto standing = reservations_.standing(who);
  const std::uint64_t all = of_tenant ? tier.allowance(who.tenant) : tier.cap_bytes();
  const std::uint64_t loans =
      std::max<std::uint64_t>(of_tenant ? standing.tenant.loans : standing.part.loans, 1);
  reservations_.each_loan([&](const Reservations::Loan& loan) {
    if (!same_part(loan.to, who) || loan.to == who) return;
    if (of_tenant && loan.to.tenant != who.tenant) return;
    const std::uint64_t keep = all / kPart / loans / loan.to.slot_bytes;
    if (loan.slots.size() <= keep) return;
    recalls[loan.to.session].keeps.push_back(
        {loan.to.ns, loan.to.tier, static_cast<std::uint32_t>(keep)});
  });
}

void BlockCache::recall_extent(const MemoryTier& tier, ExtentId extent, Recalls& recalls) const {
  if (tier.use_of(extent).lent == 0) return;
  reservations_.each_loan([&](const Reservations::Loan& loan) {
    if (loan.to.tier != tier.tier() || loan.to.device != tier.device() || loan.slots.empty())
      return;
    auto& extents = recalls[loan.to.session].extents;
    if (extents.empty() || extents.back() != extent) extents.push_back(extent);
  });
}

// Of another class, where nothing but slots that are lent keeps it from being emptied; the one with
// the fewest of them.
std::optional<ExtentId> BlockCache::extent_to_recall(MemoryTier& tier, TenantId tenant,
                                                     std::uint64_t record_bytes) const {
  const Pool pool = tier.pool_of(tenant);
  const bool own_only = tier.pool_left(tenant) < record_bytes;
  std::optional<ExtentId> best;
  std::uint32_t fewest = ~0U;
  tier.each_extent([&](const storage::Extent& extent) {
    const auto use = tier.use_of(extent.id());
    const Pool of = tier.pool_of(extent.id());
    if (use.staying() != use.lent || use.lent == 0 || use.lent >= fewest) return;
    if ((extent.shape().slot_bytes == record_bytes && of == pool) || (own_only && of != pool))
      return;
    if (!may_evict_all_in(tier, extent.id(), tenant)) return;
    best = extent.id();
    fewest = use.lent;
  });
  return best;
}

void BlockCache::recall_for_cap(Recalls& recalls) {
  const auto one = [&](MemoryTier& tier) {
    if (tier.over_cap() && tier.draining()) recall_extent(tier, *tier.draining(), recalls);
  };
  one(host_);
  for (const auto& device : devices_) one(*device);
}

void BlockCache::stop_waiting_for_loans() {
  const auto one = [&](MemoryTier& tier) {
    // One that is being emptied in steps goes on to be.
    if (!tier.over_cap() && !tier.step_waits()) tier.stop_draining();
  };
  one(host_);
  for (const auto& device : devices_) one(*device);
}

}  // namespace kvtier::daemon
