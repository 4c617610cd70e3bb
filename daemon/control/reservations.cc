#include "daemon/control/reservations.h"

#include "client/base/check.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

void Reservations::add(SlotName slot, Tier tier, SessionId session, ProcessId process,
                       std::uint64_t client) {
  const auto device = static_cast<std::uint32_t>(slot >> (32 + limits::kExtentBits));
  const Holder holder{tier, device, session, process, client};
  const bool fresh = slots_.emplace(slot, holder).second;
  KVTIER_CHECK(fresh);
  ++held_[purse_of(holder)];
  if (session != 0) ++of_session_[session];
}

void Reservations::add_quarantined(SlotName slot, Tier tier, ProcessId process,
                                   std::uint64_t client) {
  add(slot, tier, 0, process, client);
  quarantine(slots_.at(slot));
}

void Reservations::quarantine(const Holder& holder) {
  ++quarantined_;
  ++quarantined_of_[owner_of(holder)];
}

bool Reservations::take(SlotName slot, SessionId session, Tier& tier) {
  const auto found = slots_.find(slot);
  if (found == slots_.end() || found->second.session != session) return false;
  tier = found->second.tier;
  if (--of_session_.at(session) == 0) of_session_.erase(session);
  drop_one(found->second);
  slots_.erase(found);
  return true;
}

std::uint64_t Reservations::held_by_session(SessionId session) const noexcept {
  const auto found = of_session_.find(session);
  return found == of_session_.end() ? 0 : found->second;
}

std::vector<Reservations::Slot> Reservations::end_session(SessionId session) {
  std::vector<Slot> ended;
  if (of_session_.erase(session) == 0) return ended;
  for (auto& [slot, holder] : slots_) {
    if (holder.session != session) continue;
    holder.session = 0;
    quarantine(holder);
    ended.push_back({slot, holder.tier});
  }
  return ended;
}

bool Reservations::holds(ProcessId process) const noexcept {
  const auto first = held_.lower_bound({process.pid, process.start_time, Tier{}, 0});
  return first != held_.end() && std::get<0>(first->first) == process.pid &&
         std::get<1>(first->first) == process.start_time;
}

// A walk over all slots is for those who have some: anybody may ask for it again and again.
std::vector<Reservations::Slot> Reservations::end_process(ProcessId process) {
  if (!holds(process)) return {};
  return end_quarantine([&](const Holder& holder) { return holder.process == process; });
}

std::vector<Reservations::Slot> Reservations::let_go(ProcessId process, std::uint64_t client) {
  if (!quarantined_of_.contains({process.pid, process.start_time, client})) return {};
  return end_quarantine(
      [&](const Holder& holder) { return holder.process == process && holder.client == client; });
}

template <class Which>
std::vector<Reservations::Slot> Reservations::end_quarantine(Which which) {
  std::vector<Slot> ended;
  for (auto at = slots_.begin(); at != slots_.end();) {
    if (at->second.session != 0 || !which(at->second)) {
      ++at;
      continue;
    }
    ended.push_back({at->first, at->second.tier});
    drop_one(at->second);
    const auto of_owner = quarantined_of_.find(owner_of(at->second));
    if (--of_owner->second == 0) quarantined_of_.erase(of_owner);
    at = slots_.erase(at);
    --quarantined_;
  }
  return ended;
}

std::uint32_t Reservations::held_by(ProcessId process, Tier tier,
                                    std::uint32_t device) const noexcept {
  const auto found = held_.find(purse_of({tier, device, 0, process, 0}));
  return found == held_.end() ? 0 : found->second;
}

void Reservations::drop_one(const Holder& holder) {
  const auto found = held_.find(purse_of(holder));
  if (--found->second == 0) held_.erase(found);
}

}  // namespace kvtier::daemon
