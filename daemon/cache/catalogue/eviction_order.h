// The eviction order of blocks that an earlier daemon left, as it follows from their stamps.
#pragma once

#include <span>

#include "daemon/cache/catalogue/catalogue.h"

namespace kvtier::daemon {

// Sorts by their stamps, the newest first, and within one access the head of a prefix before its
// tail. Orphans, which serve nobody yet, come behind all others.
void sort_newest_first(const Catalogue& catalogue, std::span<BlockId> blocks);

}  // namespace kvtier::daemon
