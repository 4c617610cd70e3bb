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
  // `client`: which of the process's clients, by the number it gave itself.
  void add(SlotName slot, Tier tier, SessionId session, ProcessId process,
           std::uint64_t client = 0);
  // One of a session that an earlier daemon had.
  void add_quarantined(SlotName slot, Tier tier, ProcessId process, std::uint64_t client);
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

  // The client's quarantined slots, to which it says it writes no more: nobody's from now on.
  std::vector<Slot> let_go(ProcessId process, std::uint64_t client);

  // Whether the process has slots, be they reserved or quarantined.
  bool holds(ProcessId process) const noexcept;
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
    std::uint64_t client;
    std::size_t at = 0;  // in its list: the session's, or the owner's of what is quarantined
  };
  using Purse = std::tuple<std::uint32_t, std::uint64_t, Tier, std::uint32_t>;
  static Purse purse_of(const Holder& holder) noexcept {
    return {holder.process.pid, holder.process.start_time, holder.tier, holder.device};
  }
  std::unordered_map<SlotName, Holder> slots_;
  std::map<Purse, std::uint32_t> held_;
  // So that an end looks at what ends and at nothing else.
  std::unordered_map<SessionId, std::vector<SlotName>> of_session_;
  void drop_one(const Holder& holder);
  using Owner = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;  // process and client
  static Owner owner_of(const Holder& holder) noexcept {
    return {holder.process.pid, holder.process.start_time, holder.client};
  }
  void quarantine(SlotName slot, Holder& holder);
  std::map<Owner, std::vector<SlotName>> quarantined_of_;
  void end_quarantine(std::map<Owner, std::vector<SlotName>>::iterator of,
                      std::vector<Slot>& ended);
  std::uint64_t quarantined_ = 0;
};

}  // namespace kvtier::daemon
