// Namespaces as the whole cache knows them: opened by clients and by what restarts find, forgotten
// when nothing of theirs is left, closed by administrators. Owned by the control thread.
//
// What is known of a namespace by its id alone is put right as it is opened: blocks that cannot be
// its own go, and what is its tenant's counts for that tenant. Those who outlive this daemon hear
// of a namespace with its first block, and of its end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/cache/block_removal.h"
#include "daemon/cache/catalogue/cache_counts.h"
#include "daemon/cache/catalogue/selection.h"
#include "kvtier/result.h"

namespace kvtier::daemon {

class CachedNamespaces {
 public:
  CachedNamespaces(Catalogue& catalogue, MemoryTier& host, DiskTier& disk, Placements& placements,
                   BlockRemoval& removal, CacheCounts& counts) noexcept
      : catalogue_(catalogue),
        host_(host),
        disk_(disk),
        placements_(placements),
        removal_(removal),
        counts_(counts) {}

  // The number of a namespace in this daemon, a new one where it is not known yet: then `owner`
  // made it. Errors: malformed, invalid, no_space, refused.
  Result<std::uint16_t> open(std::span<const std::byte> encoded, UserId owner = kNoUser);
  // Whether opening it makes none: it is known, and was not closed.
  bool knows(std::span<const std::byte> encoded) const;
  // Namespaces without a block that no session has open are forgotten, by the disks too.
  void forget_unused();
  // These take nothing any more, under the numbers they have now. Returns the numbers; their blocks
  // are still to be removed.
  std::vector<std::uint16_t> close(const NamespaceFilter& filter);

 private:
  void forget_misfits(std::span<const std::byte> encoded);
  void forget_others_orphans(std::span<const std::byte> encoded);

  Catalogue& catalogue_;
  MemoryTier& host_;
  DiskTier& disk_;
  Placements& placements_;
  BlockRemoval& removal_;
  CacheCounts& counts_;
};

}  // namespace kvtier::daemon
