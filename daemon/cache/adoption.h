// A restart: what an earlier daemon left in memory becomes blocks again, as its slot tables say.
// Made for it alone, on the control thread, before anything else happens to the cache.
//
// A sealed slot becomes a block where it can be one: its namespace, its size and its place in its
// prefix agree with what is known by then, no other slot of the tier has it, and the index has room
// (those used last stay). All else that is sealed is freed. A slot that somebody may be writing to
// is quarantined, for whoever that is. Nothing is read but the slot tables.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "daemon/cache/cached_namespaces.h"
#include "daemon/cache/catalogue/eviction_order.h"
#include "daemon/cache/loans/reservations.h"

namespace kvtier::daemon {

class Adoption {
 public:
  // What an earlier daemon left in memory.
  struct Left {
    std::vector<std::unique_ptr<storage::Extent>> extents;
    // The encoding of a namespace that it knew; empty where it is not known.
    std::function<std::span<const std::byte>(const NamespaceId&)> encoding;
  };
  struct Adopted {
    // That may be writing to quarantined slots; one with start time 0 is the earlier daemon's disk
    // reads.
    std::vector<ProcessId> writers;
    // Blocks that it was to write to disk and has not, with their parents.
    std::vector<std::pair<BlockId, Key>> owed;
  };

  Adoption(Catalogue& catalogue, MemoryTiers& memory, Placements& placements,
           CachedNamespaces& namespaces, Reservations& reservations) noexcept
      : catalogue_(catalogue),
        memory_(memory),
        placements_(placements),
        namespaces_(namespaces),
        reservations_(reservations) {}

  Adopted adopt(Left left);

 private:
  void adopt_slots(storage::Extent& extent);
  bool adopt_sealed(MemoryTier& tier, Place at, const storage::SlotEntry& entry);
  void quarantine(MemoryTier& tier, Place at, const storage::SlotEntry& entry);
  std::optional<std::uint16_t> namespace_of(const NamespaceId& id, std::uint64_t record_bytes);

  Catalogue& catalogue_;
  MemoryTiers& memory_;
  Placements& placements_;
  CachedNamespaces& namespaces_;
  Reservations& reservations_;
  std::function<std::span<const std::byte>(const NamespaceId&)> encoding_;
  std::uint64_t oldest_taken_ = 0;             // stamps before it have no room in the index
  std::array<std::vector<BlockId>, 2> order_;  // of the device and the host tier
  std::set<ProcessId> writers_;
  std::vector<std::pair<BlockId, Key>> owed_;
  std::optional<std::pair<NamespaceId, std::uint16_t>> last_;  // namespace met, and its number
  std::uint64_t newest_ = 0;
  std::uint64_t discarded_ = 0;
  std::uint64_t quarantined_ = 0;
};

}  // namespace kvtier::daemon
