// Rebuilds the index from the segment files alone, by reading every slot. A record that was erased
// but not yet overwritten comes back: it still proves itself, so it is right.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kvtier/result.h"
#include "storage/index/index.h"
#include "storage/index/segments.h"

namespace kvtier::storage {

// Indexes every intact record; last accesses and namespaces are not in the segments and stay
// unknown. Says in the log, and to `progress`, how far it is. Returns the number of records.
// Errors: io, no_space (of the index).
Result<std::uint64_t> rebuild_index(Index& index, const Segments& segments,
                                    const std::function<void(const std::string&)>& progress = {});

}  // namespace kvtier::storage
