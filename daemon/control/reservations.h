// Slots that clients may fill: reserved by a session of a process, or quarantined because the
// session has ended while its process may still be writing. A live client's reservation is never
// taken back; it is bounded per process instead. Owned by the control thread.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kvtier/tier.h"

namespace kvtier::daemon {

// Names one process for the host's whole uptime.
struct ProcessId {
  std::uint32_t pid = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot
  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

using SessionId = std::uint64_t;
using SlotName = std::uint64_t;  // extent << 32 | slot, as on the wire

class Reservations {
 public:
  void add(SlotName slot, Tier tier, SessionId session, ProcessId process);
  // Ends a reservation that this session holds. False if it does not.
  bool take(SlotName slot, SessionId session, Tier& tier);

  struct Slot {
    SlotName slot;
    Tier tier;
  };
  // The session's slots, which are quarantined from now on.
  std::vector<Slot> end_session(SessionId session);
  // The process's quarantined slots, which are nobody's from now on.
  std::vector<Slot> end_process(ProcessId process);

  // Of one tier (of the device tier, on one GPU).
  std::uint32_t held_by(ProcessId process, Tier tier, std::uint32_t device) const noexcept;
  std::uint64_t held_by_session(SessionId session) const noexcept;
  std::uint64_t reserved() const noexcept { return slots_.size() - quarantined_; }
  std::uint64_t quarantined() const noexcept { return quarantined_; }

 private:
  struct Holder {
    Tier tier;
    std::uint32_t device;
    SessionId session;  // 0: quarantined
    ProcessId process;
  };
  using Purse = std::tuple<std::uint32_t, std::uint64_t, Tier, std::uint32_t>;
  static Purse purse_of(const Holder& holder) noexcept {
    return {holder.process.pid, holder.process.start_time, holder.tier, holder.device};
  }
  std::unordered_map<SlotName, Holder> slots_;
  std::map<Purse, std::uint32_t> held_;
  std::unordered_map<SessionId, std::uint64_t> of_session_;
  void drop_one(const Holder& holder);
  std::uint64_t quarantined_ = 0;
};

}  // namespace kvtier::daemon
