// Slots that clients may fill: lent to a session of a process, or quarantined because the session
// has ended while its process may still be writing. A live client's slot is never taken back: the
// client is asked for it (Lending). Owned by the control thread.
//
// What is lent is counted in bytes, for everybody who may have a share of it: the part of the tier,
// the process, the tenant, and the tenant's in that process.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "daemon/cache/catalogue/user_id.h"
#include "daemon/cache/tiers/slot_name.h"
#include "daemon/config/tenants.h"
#include "kvtier/tier.h"

namespace kvtier::daemon {

// Names one process for the host's whole uptime.
struct ProcessId {
  std::uint32_t pid = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot
  friend auto operator<=>(const ProcessId&, const ProcessId&) = default;
};

// Who borrows slots of one size: a session, for one namespace, in one part of a tier.
struct Borrower {
  ProcessId process;
  std::uint64_t client = 0;  // which of the process's clients, by the number it gave itself
  SessionId session = 0;     // 0: one of an earlier daemon's
  std::uint16_t ns = 0;
  TenantId tenant = kDefaultTenant;
  Tier tier = Tier::host;
  std::uint32_t device = 0;
  std::uint64_t slot_bytes = 0;
  friend auto operator<=>(const Borrower&, const Borrower&) = default;
};

class Reservations {
 public:
  struct Loan {
    Borrower to;
    std::vector<SlotName> slots;
    bool asking = false;  // counts though it may have no slot
    bool ended = false;   // its session has: its slots are quarantined
  };
  struct Sum {
    std::uint64_t bytes = 0, slots = 0;  // quarantined ones included
    std::uint64_t loans = 0;             // that have not ended
  };
  // Of one borrower: what is lent in its part of the tier, and of that to its process, to its
  // tenant, and to both.
  struct Standing {
    Sum part, process, tenant, tenant_in_process;
    std::uint64_t own_slots = 0;
    bool counted = false;  // among the loans of all four
  };

  void add(SlotName slot, const Borrower& to);
  // One of a session that an earlier daemon had.
  void add_quarantined(SlotName slot, const Borrower& of);
  // Ends a reservation that this session holds. False if it does not.
  bool take(SlotName slot, SessionId session, Tier& tier);
  // While it asks, a borrower counts among those that share, whether it has slots or not.
  void set_asking(const Borrower& who, bool asking);

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
  Standing standing(const Borrower& who) const;
  std::uint64_t held_by_session(SessionId session) const noexcept;
  // Slots of this part of a tier that clients may fill, quarantined ones too.
  std::uint64_t bytes_in(Tier tier, std::uint32_t device) const noexcept;
  std::uint64_t reserved() const noexcept { return slots_.size() - quarantined_; }
  std::uint64_t quarantined() const noexcept { return quarantined_; }

  // Loans that have not ended.
  template <class Visit>
  void each_loan(Visit&& visit) const {
    for (const auto& [to, loan] : loans_) {
      if (!loan.loan.ended) visit(loan.loan);
    }
  }
  template <class Visit>
  void each_loan_of(ProcessId process, Visit&& visit) const {
    for (auto at = first_of(process); at != loans_.end() && at->first.process == process; ++at) {
      if (!at->second.loan.ended) visit(at->second.loan);
    }
  }

 private:
  // What a sum is of: a part of a tier, and perhaps a process and a tenant (0: all of them, as no
  // process has pid 0 and a tenant is counted from 1 here).
  using Of = std::tuple<Tier, std::uint32_t, std::uint32_t, std::uint64_t, std::uint32_t>;
  struct CountedSum {
    Sum sum;
    std::uint64_t loans = 0;  // ended ones too
  };
  struct Entry {
    Loan loan;
    std::array<CountedSum*, 4> sums{};
  };
  struct Holder {
    Entry* in;
    std::uint32_t at;  // among its slots
  };
  using Loans = std::map<Borrower, Entry>;  // which keeps them where they are

  static std::array<Of, 4> sums_of(const Borrower& who) noexcept;
  static Borrower first_key(ProcessId process) noexcept { return {process, 0, 0, 0, 0, Tier{}}; }
  Loans::const_iterator first_of(ProcessId process) const {
    return loans_.lower_bound(first_key(process));
  }
  Entry& open(const Borrower& who);
  void put(SlotName slot, Entry& in);
  void take_out(const Holder& holder);
  void drop_if_empty(Entry& entry);
  std::vector<Slot> end_quarantine(ProcessId process, std::optional<std::uint64_t> client);

  std::unordered_map<SlotName, Holder> slots_;
  Loans loans_;
  std::map<Of, CountedSum> sums_;
  std::unordered_map<SessionId, std::vector<Entry*>> of_session_;
  std::uint64_t quarantined_ = 0;
};

}  // namespace kvtier::daemon
