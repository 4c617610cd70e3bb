// Whose slots have to come home so that another gets its due, and so that an extent that a lowered
// cap takes becomes empty. Owned by the control thread.
//
// It takes nothing: it names who is to give back what lies idle, and the sessions are asked for it
// (Lending). Nobody is named for more than it has above its share.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "daemon/cache/loans/loan_shares.h"
#include "daemon/cache/room/emptying.h"

namespace kvtier::daemon {

// What a session is to give back as far as it lies idle: slots in these extents, and in these
// namespaces all but so many.
struct Recall {
  struct Keep {
    std::uint16_t ns;
    Tier tier;
    std::uint32_t slots;
  };
  std::vector<ExtentId> extents;
  std::vector<Keep> keeps;
  bool empty() const noexcept { return extents.empty() && keeps.empty(); }
};

class Recalls {
 public:
  using BySession = std::map<SessionId, Recall>;

  Recalls(MemoryTiers& memory, Emptying& emptying, const Reservations& reservations,
          const LoanShares& shares) noexcept
      : memory_(memory), emptying_(emptying), reservations_(reservations), shares_(shares) {}

  // Adds to `recalls` what has to come home so that the borrower gets what is due to it. False
  // where nothing that could come home would help; true without a recall where it is on its way
  // already.
  bool add_for(const Borrower& who, BySession& recalls);
  // The same for the extents that a lowered cap takes.
  void add_for_cap(BySession& recalls);

 private:
  void from_process(const Borrower& who, const LoanShares::Allowed& allowed,
                    BySession& recalls) const;
  void from_all(const Borrower& who, bool of_tenant, BySession& recalls) const;
  void from_extent(const MemoryTier& tier, ExtentId extent, BySession& recalls) const;

  MemoryTiers& memory_;
  Emptying& emptying_;
  const Reservations& reservations_;
  const LoanShares& shares_;
};

}  // namespace kvtier::daemon
