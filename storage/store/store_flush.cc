// Flushes of the store's thread: the segments' files first, then the index, so that what a durable
// index names is durable too.
#include "core/base/check.h"
#include "storage/index/points.h"
#include "storage/index/record_checks.h"
#include "storage/store/store_loop.h"

namespace kvtier::storage {

void StoreLoop::end_before_flush(std::uint64_t flushes_before) {
  for (Flush& flush : flushes_) {
    if (flush.number <= flushes_before) continue;
    KVTIER_CHECK(flush.waiting > 0);
    --flush.waiting;
  }
}

void StoreLoop::advance_flushes() {
  while (!flushes_.empty()) {
    Flush& flush = flushes_.front();
    if (flush.waiting > 0) return;
    if (!flush.started) start_flush(flush);
    if (!flush.files.empty()) return;
    if (!health_.online()) {
      flush.result = offline();
    } else if (flush.result) {
      KVTIER_STORAGE_POINT("storage.flush.before_index_sync");
      flush.result = index_.sync();
      if (!flush.result) index_failed(flush.result.error());
      KVTIER_STORAGE_POINT("storage.flush.after_index_sync");
    }
    finish(flush.done, flush.result);
    flushes_.pop_front();
  }
}

// Offline, the files are left for the first flush after the return.
void StoreLoop::start_flush(Flush& flush) {
  flush.started = true;
  if (!health_.online()) return;
  KVTIER_STORAGE_POINT("storage.flush.started");
  flush.files.assign(files_written_.begin(), files_written_.end());
  files_written_.clear();
  sync_next_file(flush);
}

void StoreLoop::sync_next_file(Flush& flush) {
  // A file that was closed since came back from offline; it is opened again to be synced.
  while (!flush.files.empty() && !open_segment(flush.files.back())) {
    files_written_.insert(flush.files.back());
    flush.files.pop_back();
    flush.result = offline();
  }
  if (flush.files.empty()) return;
  KVTIER_STORAGE_POINT("storage.flush.before_file_sync");
  device_.sync(FileId(flush.files.back()), kSyncTag);
  device_.submit();
}

void StoreLoop::settle_sync(BlockDevice::Completion& completion) {
  KVTIER_CHECK(!flushes_.empty() && flushes_.front().started);
  KVTIER_STORAGE_POINT("storage.flush.after_file_sync");
  Flush& flush = flushes_.front();
  if (!completion.result) {
    flush.result = completion.result;
    files_written_.insert(flush.files.back());
  }
  flush.files.pop_back();
  if (health_.online()) {
    sync_next_file(flush);
  } else {
    files_written_.insert(flush.files.begin(), flush.files.end());
    flush.files.clear();
  }
}

}  // namespace kvtier::storage
