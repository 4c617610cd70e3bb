// The control thread's part of a remote store: extents, budgets, bounds, erases and counters,
// before a backend that moves the bytes.
//
// It holds: a key that is being erased is found and read by nobody until it is gone, or was written
// anew; no erase and write of one key are under way at the same time.
#pragma once

#include <memory>

#include "storage/remote/remote_backend.h"
#include "storage/remote/remote_store.h"

namespace kvtier::storage {

std::unique_ptr<RemoteStore> make_remote_front(const RemoteOptions& options,
                                               std::shared_ptr<RemoteShared> shared,
                                               std::unique_ptr<RemoteBackend> backend);

}  // namespace kvtier::storage
