#include "storage/store/thread/flushes.h"

#include <spdlog/spdlog.h>

#include <algorithm>
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
    give_up_doubtful();
    if (!availability_.online()) {
      flush.result = availability_.offline();
    } else if (const auto synced = changes_.sync(); flush.result) {
      flush.result = synced;
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
  unsynced_.begin_sync();
  shared_.device.sync(FileId(flush.files.back()), kSyncTag);
  shared_.device.submit();
}

void Flushes::land_sync(const BlockDevice::Completion& completion) {
  KVTIER_CHECK(!flushes_.empty() && flushes_.front().started);
  KVTIER_STORAGE_POINT("storage.flush.after_file_sync");
  Flush& flush = flushes_.front();
  const std::uint32_t segment = flush.files.back();
  if (completion.result) {
    unsynced_.synced(segment);
  } else {
    flush.result = completion.result;
    files_.note_written(segment);
    const auto lost = unsynced_.take(segment);
    doubtful_.insert(doubtful_.end(), lost.begin(), lost.end());
  }
  flush.files.pop_back();
  if (availability_.online()) {
    sync_next_file(flush);
  } else {
    for (const std::uint32_t file : flush.files) files_.note_written(file);
    flush.files.clear();
  }
}

// Their entries go first, so that nothing is told of as gone that a restart would find.
void Flushes::give_up_doubtful() {
  const auto lost = std::exchange(doubtful_, {});
  if (lost.empty()) return;
  spdlog::error("disk tier {}: {} records given up, whose sync failed",
                shared_.options.directory.string(), lost.size());
  shared_.counters.records_given_up += lost.size();
  std::vector<Key> keys(lost.size());
  std::ranges::transform(lost, keys.begin(), &LostRecord::key);
  if (availability_.online()) {
    changes_.erase(keys);
    changes_.when_committed([&](const Result<void>& erased) {
      if (!erased) changes_.erase_on_return(keys);
    });
    changes_.commit();
  } else {
    changes_.erase_on_return(keys);
  }
  if (lost_) shared_.finished.add([told = lost_, lost] { told(lost); });
}

}  // namespace kvtier::storage
