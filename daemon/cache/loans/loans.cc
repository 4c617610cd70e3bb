#include "daemon/cache/loans/loans.h"

#include <algorithm>

namespace kvtier::daemon {

Borrower Loans::borrower(SessionId session, ProcessId process, std::uint16_t ns, Tier tier,
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

std::vector<SlotName> Loans::lend(const Borrower& to, std::uint32_t count, bool contended) {
  std::vector<SlotName> slots;
  const auto allowed = shares_.of(to);
  std::uint64_t most = std::min<std::uint64_t>(allowed.more, count);
  if (contended) most = std::min(most, allowed.due - std::min(allowed.due, allowed.own));
  if (most == 0) return slots;
  MemoryTier& tier = memory_.of(to.tier, to.device);
  EvictionAhead ahead(catalogue_, to.tier);
  while (slots.size() < most) {
    ahead.step([&] { return eviction_.victim(tier, to.tenant, to.slot_bytes, true); });
    const auto at = room_.slot(tier, to.tenant, to.slot_bytes);
    if (!at) break;
    tier.table(*at).set_reserved(at->slot, {to.process.pid, to.process.start_time, to.client});
    tier.set_lent(*at, true);
    reservations_.add(slot_name(*at), to);
    slots.push_back(slot_name(*at));
  }
  return slots;
}

bool Loans::has_less_than_due(const Borrower& who) const {
  const auto allowed = shares_.of(who);
  return allowed.own < allowed.due;
}

std::optional<Tier> Loans::take_back(SlotName slot, SessionId session) {
  Tier tier;
  if (!reservations_.take(slot, session, tier)) return std::nullopt;
  const Place at = place_named(slot);
  memory_.of(tier, at).set_lent(at, false);
  return tier;
}

void Loans::abandon(SessionId session, SlotName slot) {
  const Place at = place_named(slot);
  if (const auto tier = take_back(slot, session)) memory_.of(*tier, at).give_back(at);
}

void Loans::end_session(SessionId session) {
  for (const auto& slot : reservations_.end_session(session)) {
    const Place at = place_named(slot.slot);
    MemoryTier& tier = memory_.of(slot.tier, at);
    tier.set_lent(at, false);
    tier.table(at).set_quarantined(at.slot);
  }
}

void Loans::end_process(ProcessId process) {
  give_back(reservations_.end_process(process));
}

void Loans::let_go(ProcessId process, std::uint64_t client) {
  give_back(reservations_.let_go(process, client));
}

void Loans::give_back(std::span<const Reservations::Slot> slots) {
  for (const auto& slot : slots) {
    const Place at = place_named(slot.slot);
    memory_.of(slot.tier, at).give_back(at);
  }
}

}  // namespace kvtier::daemon
