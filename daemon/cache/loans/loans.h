// Slots of the memory tiers that clients fill: lending them, and taking them back as they are
// filled, given up, or left behind by a session that ended. Owned by the control thread.
//
// A lent slot is reserved in its extent's table, with its borrower, lent in its tier, and the
// borrower's in the Reservations, all three or none. When its session ends it is quarantined, for
// its process may still be writing to it, and it is free once that process has ended or its client
// says that it has let go. A slot is never taken from a session that has not ended.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "daemon/cache/loans/loan_shares.h"
#include "daemon/cache/loans/reservations.h"
#include "daemon/cache/room/room.h"

namespace kvtier::daemon {

class Loans {
 public:
  Loans(Catalogue& catalogue, MemoryTiers& memory, Eviction& eviction, Room& room,
        Reservations& reservations, const LoanShares& shares) noexcept
      : catalogue_(catalogue),
        memory_(memory),
        eviction_(eviction),
        room_(room),
        reservations_(reservations),
        shares_(shares) {}

  // Who a session is when it borrows for this namespace; on the device tier, of this GPU.
  Borrower borrower(SessionId session, ProcessId process, std::uint16_t ns, Tier tier,
                    std::uint32_t device, std::uint64_t client) const;
  // Up to `count` slots, free ones or by eviction. `contended`: others wait for slots of this part
  // of the tier, so nobody gets more than its due.
  std::vector<SlotName> lend(const Borrower& to, std::uint32_t count, bool contended);
  // Whether the borrower has fewer slots than its share of what its process may have lent.
  bool has_less_than_due(const Borrower& who) const;
  void set_asking(const Borrower& who, bool asking) { reservations_.set_asking(who, asking); }

  // The loan of a slot ends, which is the caller's now, to seal or to give back to its tier. None,
  // and nothing done, where the session does not hold it.
  std::optional<Tier> take_back(SlotName slot, SessionId session);
  // Gives up a slot; nothing done where the session does not hold it.
  void abandon(SessionId session, SlotName slot);

  void end_session(SessionId session);
  void end_process(ProcessId process);
  // The client writes no more to slots that its earlier sessions had reserved.
  void let_go(ProcessId process, std::uint64_t client);

 private:
  void give_back(std::span<const Reservations::Slot> slots);

  Catalogue& catalogue_;
  MemoryTiers& memory_;
  Eviction& eviction_;
  Room& room_;
  Reservations& reservations_;
  const LoanShares& shares_;
};

}  // namespace kvtier::daemon
