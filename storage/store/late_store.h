// A record store whose directory cannot be used when the daemon starts, for example because its
// file system has turned read-only, or because its device hangs. It is offline and empty; a thread
// of its own tries to open it, and when it can, it is online and has records to recover().
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "storage/device/wrap_device.h"
#include "storage/store/record_store.h"

namespace kvtier::storage {

class LateStore;

// A store that is being opened, on a thread of its own: several are opened side by side, and one
// that hangs holds up nobody for long.
class StoreOpening {
 public:
  StoreOpening(const RecordStoreOptions& options, RecordStore::Post post,
               const WrapDevice& wrap = {});
  ~StoreOpening();
  StoreOpening(const StoreOpening&) = delete;

  // Waits until it is open or cannot be opened, and while `progress` hears of it, which is called
  // from here. Once. A store that was made before, or that waits for a mount (kNotMountedMark), and
  // cannot be used now comes late, and so does one of which nothing was heard for `patience`: its
  // errors io and no_space are in the log and the store's first word about its health. No directory
  // is ever made in place of one that is missing. Errors: those of open_record_store().
  Result<std::unique_ptr<RecordStore>> take(std::chrono::milliseconds patience);

 private:
  const std::function<void(const std::string&)> progress_;
  std::unique_ptr<LateStore> late_;
};

// Both at once.
Result<std::unique_ptr<RecordStore>> open_record_store_now_or_late(
    const RecordStoreOptions& options, RecordStore::Post post, const WrapDevice& wrap = {},
    std::chrono::milliseconds patience = std::chrono::minutes(1));

// As open_record_store(), with `wrap`, where there is one, around the device.
Result<std::unique_ptr<RecordStore>> open_wrapped_record_store(const RecordStoreOptions& options,
                                                               RecordStore::Post post,
                                                               const WrapDevice& wrap);

}  // namespace kvtier::storage
