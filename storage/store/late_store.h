// A record store whose directory cannot be used when the daemon starts, for example because its
// file system has turned read-only. It is offline and empty; a thread of its own tries to open it,
// and when it can, it is online and has records to recover().
#pragma once

#include <memory>

#include "storage/device/wrap_device.h"
#include "storage/store/record_store.h"

namespace kvtier::storage {

// As open_record_store(), but a store that was made before and cannot be used now comes late: its
// errors io and no_space are in the log and the store's first word about its health. No directory
// is ever made in place of one that is missing. A late store is opened on its own thread, without
// `progress`.
Result<std::unique_ptr<RecordStore>> open_record_store_now_or_late(
    const RecordStoreOptions& options, RecordStore::Post post, const WrapDevice& wrap = {});

// As open_record_store(), with `wrap`, where there is one, around the device.
Result<std::unique_ptr<RecordStore>> open_wrapped_record_store(const RecordStoreOptions& options,
                                                               RecordStore::Post post,
                                                               const WrapDevice& wrap);

}  // namespace kvtier::storage
