// The eviction order of blocks that an earlier daemon left, as it follows from their stamps.
#pragma once

#include <span>
#include <vector>

#include "daemon/cache/catalogue/catalogue.h"

namespace kvtier::daemon {

struct Recovered {
  std::uint64_t last_access;
  std::uint32_t block_index;
  BlockId id;
};

// Oldest first, and within one access the tail of a prefix before its head. Orphans, which serve
// nobody yet, go before all others. `blocks` is sorted in place.
std::vector<BlockId> oldest_first(const Catalogue& catalogue, std::span<Recovered> blocks);

}  // namespace kvtier::daemon
