// How many slots of a part of a memory tier a borrower may be lent, and how many are its due. Owned
// by the control thread; changes nothing.
//
// A process may have lent a quarter of what the others leave it of a part of a tier, and the same
// of its tenants' quotas: of all parts, then, something is left for the next process, whatever
// those before it do. Its sessions' namespaces share that evenly once they want more than there is;
// until then each may have all of it.
#pragma once

#include <cstdint>

#include "daemon/cache/catalogue/catalogue.h"
#include "daemon/cache/loans/reservations.h"
#include "daemon/cache/tiers/memory_tiers.h"

namespace kvtier::daemon {

class LoanShares {
 public:
  LoanShares(const Catalogue& catalogue, const MemoryTiers& memory,
             const Reservations& reservations) noexcept
      : catalogue_(catalogue), memory_(memory), reservations_(reservations) {}

  static constexpr std::uint64_t kPart = 4;  // of what there is, for one process

  struct Allowed {
    std::uint64_t own = 0;   // slots that it has
    std::uint64_t more = 0;  // that it may have besides
    std::uint64_t due = 0;   // that it is to have, whatever its process has
    std::uint64_t loan_bytes = 0,
                  loan_slots = 0;  // of each loan of the process, so that all have theirs
    bool by_tenant = false;        // it is the tenant's share that bounds it
  };
  // Nothing where there is no such part, or its namespace was closed.
  Allowed of(const Borrower& who) const;

 private:
  const Catalogue& catalogue_;
  const MemoryTiers& memory_;
  const Reservations& reservations_;
};

}  // namespace kvtier::daemon
