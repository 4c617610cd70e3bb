#include "daemon/cache/loans/reservations.h"

#include <algorithm>

#include "core/base/check.h"

namespace kvtier::daemon {

std::array<Reservations::Of, 4> Reservations::sums_of(const Borrower& who) noexcept {
  const auto [pid, start] = who.process;
  const std::uint32_t tenant = who.tenant + 1U;
  return {Of{who.tier, who.device, 0, 0, 0}, Of{who.tier, who.device, pid, start, 0},
          Of{who.tier, who.device, 0, 0, tenant}, Of{who.tier, who.device, pid, start, tenant}};
}

Reservations::Entry& Reservations::open(const Borrower& who) {
  const auto [at, fresh] = loans_.try_emplace(who);
  Entry& entry = at->second;
  if (!fresh) return entry;
  entry.loan.to = who;
  entry.loan.ended = who.session == 0;
  const auto sums = sums_of(who);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    entry.sums[i] = &sums_[sums[i]];
    ++entry.sums[i]->loans;
    if (!entry.loan.ended) ++entry.sums[i]->sum.loans;
  }
  if (who.session != 0) of_session_[who.session].push_back(&entry);
  return entry;
}

void Reservations::put(SlotName slot, Entry& in) {
  const auto at = static_cast<std::uint32_t>(in.loan.slots.size());
  const bool fresh = slots_.emplace(slot, Holder{&in, at}).second;
  KVTIER_CHECK(fresh);
  in.loan.slots.push_back(slot);
  for (CountedSum* of : in.sums) {
    of->sum.bytes += in.loan.to.slot_bytes;
    ++of->sum.slots;
  }
}

void Reservations::add(SlotName slot, const Borrower& to) {
  put(slot, open(to));
}

void Reservations::add_quarantined(SlotName slot, const Borrower& of) {
  KVTIER_CHECK(of.session == 0);
  put(slot, open(of));
  ++quarantined_;
}

// Of the loan's other slots the last one takes its place.
void Reservations::take_out(const Holder& holder) {
  Entry& entry = *holder.in;
  auto& slots = entry.loan.slots;
  slots[holder.at] = slots.back();
  slots_.at(slots.back()).at = holder.at;
  slots.pop_back();
  for (CountedSum* of : entry.sums) {
    of->sum.bytes -= entry.loan.to.slot_bytes;
    --of->sum.slots;
  }
}

void Reservations::drop_if_empty(Entry& entry) {
  if (!entry.loan.slots.empty() || entry.loan.asking) return;
  const Borrower who = entry.loan.to;
  const auto sums = sums_of(who);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (!entry.loan.ended) --entry.sums[i]->sum.loans;
    if (--entry.sums[i]->loans == 0) sums_.erase(sums[i]);
  }
  if (const auto of = of_session_.find(who.session); of != of_session_.end()) {
    std::erase(of->second, &entry);
    if (of->second.empty()) of_session_.erase(of);
  }
  loans_.erase(who);
}

bool Reservations::take(SlotName slot, SessionId session, Tier& tier) {
  const auto found = slots_.find(slot);
  if (found == slots_.end()) return false;
  const Holder holder = found->second;
  const Loan& loan = holder.in->loan;
  if (loan.ended || loan.to.session != session) return false;
  tier = loan.to.tier;
  take_out(holder);
  slots_.erase(slot);
  drop_if_empty(*holder.in);
  return true;
}

void Reservations::set_asking(const Borrower& who, bool asking) {
  if (!asking && !loans_.contains(who)) return;
  Entry& entry = open(who);
  entry.loan.asking = asking;
  drop_if_empty(entry);
}

std::uint64_t Reservations::held_by_session(SessionId session) const noexcept {
  const auto found = of_session_.find(session);
  if (found == of_session_.end()) return 0;
  std::uint64_t slots = 0;
  for (const Entry* entry : found->second) slots += entry->loan.slots.size();
  return slots;
}

std::uint64_t Reservations::bytes_in(Tier tier, std::uint32_t device) const noexcept {
  const auto found = sums_.find(Of{tier, device, 0, 0, 0});
  return found == sums_.end() ? 0 : found->second.sum.bytes;
}

std::vector<Reservations::Slot> Reservations::end_session(SessionId session) {
  std::vector<Slot> ended;
  auto node = of_session_.extract(session);
  if (node.empty()) return ended;
  for (Entry* entry : node.mapped()) {
    Loan& loan = entry->loan;
    loan.ended = true;
    loan.asking = false;
    for (CountedSum* of : entry->sums) --of->sum.loans;
    for (const SlotName slot : loan.slots) ended.push_back({slot, loan.to.tier});
    drop_if_empty(*entry);
  }
  quarantined_ += ended.size();
  return ended;
}

bool Reservations::holds(ProcessId process) const noexcept {
  for (auto at = first_of(process); at != loans_.end() && at->first.process == process; ++at) {
    if (!at->second.loan.slots.empty()) return true;
  }
  return false;
}

std::vector<Reservations::Slot> Reservations::end_process(ProcessId process) {
  return end_quarantine(process, std::nullopt);
}

std::vector<Reservations::Slot> Reservations::let_go(ProcessId process, std::uint64_t client) {
  return end_quarantine(process, client);
}

std::vector<Reservations::Slot> Reservations::end_quarantine(ProcessId process,
                                                             std::optional<std::uint64_t> client) {
  std::vector<Slot> ended;
  for (auto at = loans_.lower_bound(first_key(process));
       at != loans_.end() && at->first.process == process;) {
    Entry& entry = (at++)->second;
    if (!entry.loan.ended || (client && entry.loan.to.client != *client)) continue;
    quarantined_ -= entry.loan.slots.size();
    while (!entry.loan.slots.empty()) {
      const SlotName slot = entry.loan.slots.back();
      ended.push_back({slot, entry.loan.to.tier});
      take_out(slots_.at(slot));
      slots_.erase(slot);
    }
    drop_if_empty(entry);
  }
  return ended;
}

Reservations::Standing Reservations::standing(const Borrower& who) const {
  Standing standing;
  const std::array<Sum*, 4> into{&standing.part, &standing.process, &standing.tenant,
                                 &standing.tenant_in_process};
  const auto sums = sums_of(who);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (const auto found = sums_.find(sums[i]); found != sums_.end()) *into[i] = found->second.sum;
  }
  if (const auto loan = loans_.find(who); loan != loans_.end()) {
    standing.own_slots = loan->second.loan.slots.size();
    standing.counted = !loan->second.loan.ended;
  }
  return standing;
}

}  // namespace kvtier::daemon
