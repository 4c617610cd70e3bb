#include "daemon/control/reservations.h"

#include "client/base/check.h"

namespace kvtier::daemon {
void Reservations::add(SlotName slot, Tier tier, SessionId session, ProcessId process) {
  const bool fresh = slots_.emplace(slot, Holder{tier, session, process}).second;
  KVTIER_CHECK(fresh);
  ++held_[{process.pid, process.start_time, tier}];
}

bool Reservations::take(SlotName slot, SessionId session, Tier& tier) {
  const auto found = slots_.find(slot);
  if (found == slots_.end() || found->second.session != session) return false;
  tier = found->second.tier;
  drop_one(found->second);
  slots_.erase(found);
  return true;
}

std::vector<Reservations::Slot> Reservations::end_session(SessionId session) {
  std::vector<Slot> ended;
  for (auto& [slot, holder] : slots_) {
    if (holder.session != session) continue;
    holder.session = 0;
    ++quarantined_;
    ended.push_back({slot, holder.tier});
  }
  return ended;
}

std::vector<Reservations::Slot> Reservations::end_process(ProcessId process) {
  std::vector<Slot> ended;
  for (auto at = slots_.begin(); at != slots_.end();) {
    if (at->second.session != 0 || !(at->second.process == process)) {
      ++at;
      continue;
    }
    ended.push_back({at->first, at->second.tier});
    drop_one(at->second);
    at = slots_.erase(at);
    --quarantined_;
  }
  return ended;
}

std::uint32_t Reservations::held_by(ProcessId process, Tier tier) const noexcept {
  const auto found = held_.find({process.pid, process.start_time, tier});
  return found == held_.end() ? 0 : found->second;
}

void Reservations::drop_one(const Holder& holder) {
  const auto found = held_.find({holder.process.pid, holder.process.start_time, holder.tier});
  if (--found->second == 0) held_.erase(found);
}

}  // namespace kvtier::daemon
