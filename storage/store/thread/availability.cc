#include "storage/store/thread/availability.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "storage/index/points.h"

namespace kvtier::storage {

Availability::Availability(StoreShared& shared, Steps steps)
    : shared_(shared),
      steps_(std::move(steps)),
      health_(shared.options.probe_first, shared.options.probe_max),
      next_look_(Health::Clock::now() + shared.options.check_interval) {}

Error Availability::offline() const {
  return make_error(Errc::unavailable, "the disk tier is offline: " + why_);
}

void Availability::go_offline(const std::string& what, int code) {
  if (!health_.online()) return;
  health_.go_offline(Health::Clock::now());
  shared_.counters.online = false;
  why_ = what + "; " + mend_of(shared_.options.directory, code);
  spdlog::error("disk tier {} is offline: {}", shared_.options.directory.string(), why_);
  announce(false, why_);
  steps_.fail_queued(offline());
  KVTIER_STORAGE_POINT("storage.health.offline");
}

void Availability::index_failed(const Error& error) {
  go_offline(error.message, error.code == Errc::no_space ? ENOSPC : 0);
}

void Availability::transfer_ended(Health::Transfer kind, const BlockDevice::Completion& completion,
                                  DiskLocation at) {
  if (!health_.online()) return;
  const int code = completion.result ? 0 : completion.code != 0 ? completion.code : EIO;
  if (health_.transfer_ended(kind, code, at, Health::Clock::now())) {
    go_offline(completion.result.error().message, code);
  }
}

void Availability::tell(HealthChanged changed) {
  changed_ = std::move(changed);
  if (!health_.online()) announce(false, why_);
}

void Availability::announce(bool online, const std::string& why) {
  if (!changed_) return;
  shared_.finished.add([changed = changed_, online, why] { changed(online, why); });
}

void Availability::look_after() {
  const auto now = Health::Clock::now();
  if (health_.online()) {
    if (now < next_look_) return;
    next_look_ = now + shared_.options.check_interval;
    if (const auto there = steps_.look(); !there) go_offline(there.error().message, ENOENT);
    return;
  }
  if (shared_.closing || now < health_.next_probe() || shared_.device.in_flight() > 0) return;
  if (const auto usable = steps_.probe(); !usable) {
    spdlog::debug("disk tier {}: {}", shared_.options.directory.string(), usable.error().message);
    health_.probe_failed(Health::Clock::now());
    return;
  }
  health_.go_online(Health::Clock::now());
  shared_.counters.online = true;
  spdlog::info("disk tier {} is online again", shared_.options.directory.string());
  announce(true, "the device works again");
  KVTIER_STORAGE_POINT("storage.health.online");
}

BlockDevice::Duration Availability::until_next_look() const {
  if (!health_.online() && shared_.device.in_flight() > 0) return BlockDevice::kForever;
  const auto next = health_.online() ? next_look_ : health_.next_probe();
  const auto left = std::chrono::ceil<BlockDevice::Duration>(next - Health::Clock::now());
  return std::max(left, BlockDevice::Duration(1));
}

}  // namespace kvtier::storage
