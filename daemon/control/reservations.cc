#include "daemon/control/reservations.h"

#include "client/base/check.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

void Reservations::add(SlotName slot, Tier tier, SessionId session, ProcessId process,
                       std::uint64_t client) {
  const auto device = static_cast<std::uint32_t>(slot >> (32 + limits::kExtentBits));
  Holder holder{tier, device, session, process, client};
  if (session != 0) {
    auto& of_session = of_session_[session];
    holder.at = of_session.size();
    of_session.push_back(slot);
  }
  const bool fresh = slots_.emplace(slot, holder).second;
  KVTIER_CHECK(fresh);
  ++held_[purse_of(holder)];
}

void Reservations::add_quarantined(SlotName slot, Tier tier, ProcessId process,
                                   std::uint64_t client) {
  add(slot, tier, 0, process, client);
  quarantine(slot, slots_.at(slot));
}

void Reservations::quarantine(SlotName slot, Holder& holder) {
  auto& of_owner = quarantined_of_[owner_of(holder)];
  holder.session = 0;
  holder.at = of_owner.size();
  of_owner.push_back(slot);
  ++quarantined_;
}

bool Reservations::take(SlotName slot, SessionId session, Tier& tier) {
  const auto found = slots_.find(slot);
  if (found == slots_.end() || found->second.session != session) return false;
  tier = found->second.tier;
  auto& of_session = of_session_.at(session);
  slots_.at(of_session.back()).at = found->second.at;
  of_session[found->second.at] = of_session.back();
  of_session.pop_back();
  if (of_session.empty()) of_session_.erase(session);
  drop_one(found->second);
  slots_.erase(found);
  return true;
}

std::uint64_t Reservations::held_by_session(SessionId session) const noexcept {
  const auto found = of_session_.find(session);
  return found == of_session_.end() ? 0 : found->second.size();
}

std::vector<Reservations::Slot> Reservations::end_session(SessionId session) {
  std::vector<Slot> ended;
  const auto of_session = of_session_.extract(session);
  if (of_session.empty()) return ended;
  for (const SlotName slot : of_session.mapped()) {
    Holder& holder = slots_.at(slot);
    quarantine(slot, holder);
    ended.push_back({slot, holder.tier});
  }
  return ended;
}

bool Reservations::holds(ProcessId process) const noexcept {
  const auto first = held_.lower_bound({process.pid, process.start_time, Tier{}, 0});
  return first != held_.end() && std::get<0>(first->first) == process.pid &&
         std::get<1>(first->first) == process.start_time;
}

std::vector<Reservations::Slot> Reservations::end_process(ProcessId process) {
  std::vector<Slot> ended;
  const Owner first{process.pid, process.start_time, 0};
  for (auto of = quarantined_of_.lower_bound(first);
       of != quarantined_of_.end() && std::get<0>(of->first) == process.pid &&
       std::get<1>(of->first) == process.start_time;
       of = quarantined_of_.erase(of)) {
    end_quarantine(of, ended);
  }
  return ended;
}

std::vector<Reservations::Slot> Reservations::let_go(ProcessId process, std::uint64_t client) {
  std::vector<Slot> ended;
  const auto of = quarantined_of_.find({process.pid, process.start_time, client});
  if (of == quarantined_of_.end()) return ended;
  end_quarantine(of, ended);
  quarantined_of_.erase(of);
  return ended;
}

void Reservations::end_quarantine(std::map<Owner, std::vector<SlotName>>::iterator of,
                                  std::vector<Slot>& ended) {
  for (const SlotName slot : of->second) {
    const auto at = slots_.find(slot);
    ended.push_back({slot, at->second.tier});
    drop_one(at->second);
    slots_.erase(at);
  }
  quarantined_ -= of->second.size();
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
