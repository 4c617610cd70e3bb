// How a store leaves and comes back.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>

#include "storage/index/points.h"
#include "storage/store/store_loop.h"

namespace kvtier::storage {

Error StoreLoop::offline() const {
  return make_error(Errc::unavailable, "the disk tier is offline: " + offline_why_);
}

// What is in flight stays the device's until it completes, and fails then.
void StoreLoop::go_offline(const std::string& what, int code) {
  if (!health_.online()) return;
  health_.go_offline(Health::Clock::now());
  counters_.online = false;
  offline_why_ = what + "; " + mend_of(options_.directory, code);
  spdlog::error("disk tier {} is offline: {}", options_.directory.string(), offline_why_);
  announce(false, offline_why_);
  const Result<void> failed = offline();
  for (auto& command : std::exchange(reads_queued_, {})) finish_read(command, failed);
  for (auto& command : std::exchange(looks_queued_, {})) finish_read(command, failed);
  for (auto& command : std::exchange(scrubs_queued_, {})) finish_scrub(command, failed);
  for (auto& command : std::exchange(writes_queued_, {})) finish_write(command, failed);
  for (auto& command : std::exchange(writes_sealed_, {})) finish_write(command, failed);
  for (auto& command : std::exchange(writes_cleared_, {})) finish_write(command, failed);
  KVTIER_STORAGE_POINT("storage.health.offline");
}

void StoreLoop::index_failed(const Error& error) {
  go_offline(error.message, error.code == Errc::no_space ? ENOSPC : 0);
}

void StoreLoop::announce(bool online, const std::string& why) {
  if (!health_changed_) return;
  finished_.push_back([changed = health_changed_, online, why] { changed(online, why); });
}

void StoreLoop::look_after_health() {
  const auto now = Health::Clock::now();
  if (health_.online()) {
    if (now < next_look_) return;
    next_look_ = now + options_.check_interval;
    counters_.index_bytes = index_.file_bytes();
    if (const auto there = directory_.look(); !there) go_offline(there.error().message, ENOENT);
    return;
  }
  // The files are closed before the store comes back, so the last transfer is waited for.
  if (closing_ || now < health_.next_probe() || device_.in_flight() > 0) return;
  if (const auto usable = probe(); !usable) {
    spdlog::debug("disk tier {}: {}", options_.directory.string(), usable.error().message);
    health_.probe_failed(Health::Clock::now());
    return;
  }
  health_.go_online(Health::Clock::now());
  counters_.online = true;
  spdlog::info("disk tier {} is online again", options_.directory.string());
  announce(true, "the device works again");
  KVTIER_STORAGE_POINT("storage.health.online");
}

// Everything that a record needs, and what could not be done meanwhile.
Result<void> StoreLoop::probe() {
  if (const auto usable = directory_.probe(); !usable) return usable;
  if (const auto seen = segments_.look_again(); !seen) return seen;
  std::erase_if(files_written_,
                [this](std::uint32_t segment) { return segments_.slot_bytes_of(segment) == 0; });
  if (const auto revived = index_.revive(); !revived) return revived;
  KVTIER_STORAGE_POINT("storage.health.index_revived");
  // They may be files of a device that is gone for good.
  for (const std::uint32_t segment : std::exchange(files_open_, {})) {
    device_.close_file(FileId(segment));
  }
  Index::Batch batch;
  for (const Key& key : keys_to_erase_) batch.erase(key);
  for (const auto& known : namespaces_unsaved_) batch.put_namespace(known.id, known.encoded);
  if (const auto made_up = index_.commit(batch); !made_up) return made_up;
  keys_to_erase_.clear();
  namespaces_unsaved_.clear();
  return {};
}

BlockDevice::Duration StoreLoop::until_next_look() const {
  if (!health_.online() && device_.in_flight() > 0) return BlockDevice::kForever;
  const auto next = health_.online() ? next_look_ : health_.next_probe();
  const auto left = std::chrono::ceil<BlockDevice::Duration>(next - Health::Clock::now());
  return std::max(left, BlockDevice::Duration(1));
}

}  // namespace kvtier::storage
