#include "storage/store/thread/flushes.h"

#include <utility>

#include "core/base/check.h"
#include "storage/index/points.h"
#include "storage/index/record_checks.h"

namespace kvtier::storage {

void Flushes::take(FlushCommand&& command, std::uint64_t before) {
  Flush flush;
  flush.number = ++seen_;
  flush.done = std::move(command.done);
  flush.waiting = before;
  flushes_.push_back(std::move(flush));
}

void Flushes::end_before(std::uint64_t flushes_before) {
  for (Flush& flush : flushes_) {
    if (flush.number <= flushes_before) continue;
    KVTIER_CHECK(flush.waiting > 0);
    --flush.waiting;
  }
}

void Flushes::advance() {
  while (!flushes_.empty()) {
    Flush& flush = flushes_.front();
    if (flush.waiting > 0) return;
    if (!flush.started) start(flush);
    if (!flush.files.empty()) return;
    if (!availability_.online()) {
      flush.result = availability_.offline();
    } else if (flush.result) {
      flush.result = changes_.sync();
    }
    shared_.finished.add(flush.done, flush.result);
    flushes_.pop_front();
  }
}

void Flushes::start(Flush& flush) {
  flush.started = true;
  if (!availability_.online()) return;
  KVTIER_STORAGE_POINT("storage.flush.started");
  flush.files = files_.take_unsynced();
  sync_next_file(flush);
}

void Flushes::sync_next_file(Flush& flush) {
  // A file that was closed since came back from offline; it is opened again to be synced.
  while (!flush.files.empty() && !files_.open(flush.files.back())) {
    files_.note_written(flush.files.back());
    flush.files.pop_back();
    flush.result = availability_.offline();
  }
  if (flush.files.empty()) return;
  KVTIER_STORAGE_POINT("storage.flush.before_file_sync");
  shared_.device.sync(FileId(flush.files.back()), kSyncTag);
  shared_.device.submit();
}

void Flushes::land_sync(const BlockDevice::Completion& completion) {
  KVTIER_CHECK(!flushes_.empty() && flushes_.front().started);
  KVTIER_STORAGE_POINT("storage.flush.after_file_sync");
  Flush& flush = flushes_.front();
  if (!completion.result) {
    flush.result = completion.result;
    files_.note_written(flush.files.back());
  }
  flush.files.pop_back();
  if (availability_.online()) {
    sync_next_file(flush);
  } else {
    for (const std::uint32_t file : flush.files) files_.note_written(file);
    flush.files.clear();
  }
}

}  // namespace kvtier::storage
