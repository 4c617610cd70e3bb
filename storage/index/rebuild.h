// Rebuilds the index from the segment files, by reading the head of every slot, and from the log of
// what was erased. A record that was evicted but not yet overwritten comes back: it still proves
// itself, so it is right. Payloads are not read; one that was cut short does not hold when it is.
#pragma once

#include <cstdint>

#include "kvtier/result.h"
#include "storage/index/erasures.h"
#include "storage/index/index.h"
#include "storage/index/segments.h"

namespace kvtier::storage {

// Indexes every record with an intact head that was not erased; last accesses and namespaces are
// not in the segments and stay unknown. Says in the log, and to the options' `progress`, how far it
// is. Returns the number of records. Errors: io, no_space (of the index), unavailable (cancelled).
Result<std::uint64_t> rebuild_index(Index& index, const Segments& segments,
                                    const Erasures& erasures, const RecordStoreOptions& options);

}  // namespace kvtier::storage
