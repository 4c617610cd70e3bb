// What clients say does not hold. Owned by the control thread.
//
// A report is believed only of blocks that the session holds leased, and not where the daemon can
// read the record and finds that it holds. Only the placement that is bad is given up: memory that
// clients write to is no reason to forget a copy that they cannot reach.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/cache/leases/leases.h"
#include "daemon/cache/pins.h"

namespace kvtier::daemon {

class BadReports {
 public:
  BadReports(Catalogue& catalogue, MemoryTiers& memory, Pins& pins, Placements& placements,
             const Leases& leases, CacheCounts& counts) noexcept
      : catalogue_(catalogue),
        memory_(memory),
        pins_(pins),
        placements_(placements),
        leases_(leases),
        counts_(counts) {}

  // A client, which has opened these namespaces, found that these blocks do not hold. What the
  // daemon cannot read is believed. Returns how many blocks were not believed.
  std::uint64_t report(SessionId session, std::span<const std::uint16_t> namespaces,
                       std::span<const Key> keys);

 private:
  std::vector<BlockId> known_of(std::span<const std::uint16_t> namespaces,
                                std::span<const Key> keys) const;
  std::vector<TierSet> held_by(SessionId session, std::span<const BlockId> reported) const;
  bool holds_in(BlockId id, Tier tier);
  void spoil(BlockId id, TierSet tiers);

  Catalogue& catalogue_;
  MemoryTiers& memory_;
  Pins& pins_;
  Placements& placements_;
  const Leases& leases_;
  CacheCounts& counts_;
};

}  // namespace kvtier::daemon
