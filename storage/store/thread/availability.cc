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
  return make_error(Errc::unavailable, std::string("the disk tier is ") +
                                           (readable() ? "read-only: " : "offline: ") + why_);
}

void Availability::fall_to(DiskState state, const std::string& what, int code) {
  if (health_.state() >= state) return;
  health_.fall_to(state, Health::Clock::now());
  shared_.counters.online = false;
  shared_.counters.readable = readable();
  why_ = what + "; " + mend_of(shared_.options.directory, code);
  spdlog::error("disk tier {} is {}: {}", shared_.options.directory.string(),
                readable() ? "read-only" : "offline", why_);
  announce(why_);
  readable() ? steps_.fail_writes(offline()) : steps_.fail_queued(offline());
  KVTIER_STORAGE_POINT("storage.health.offline");
}

// Records can be read without it.
void Availability::index_failed(const Error& error) {
  go_read_only(error.message, error.code == Errc::no_space ? ENOSPC : 0);
}

void Availability::transfer_ended(Health::Transfer kind, const BlockDevice::Completion& completion,
                                  DiskLocation at) {
  if (!readable()) return;
  const int code = completion.result ? 0 : completion.code != 0 ? completion.code : EIO;
  if (const auto to = health_.transfer_ended(kind, code, at, Health::Clock::now()))
    fall_to(*to, completion.result.error().message, code);
}

void Availability::tell(RecordStore::Changed changed) {
  changed_ = std::move(changed);
  if (!online()) announce(why_);
}

void Availability::announce(const std::string& why) {
  if (!changed_) return;
  shared_.finished.add([changed = changed_, state = health_.state(), why] { changed(state, why); });
}

void Availability::look_after() {
  const auto now = Health::Clock::now();
  if (readable() && now >= next_look_) {
    next_look_ = now + shared_.options.check_interval;
    if (const auto there = steps_.look(); !there) go_offline(there.error().message, ENOENT);
  }
  const bool busy = !readable() && shared_.device.in_flight() > 0;
  if (online() || busy || shared_.closing || now < health_.next_probe()) return;
  if (const auto usable = steps_.probe(health_.state()); !usable) {
    spdlog::debug("disk tier {}: {}", shared_.options.directory.string(), usable.error().message);
    health_.probe_failed(Health::Clock::now());
    return;
  }
  health_.go_online(Health::Clock::now());
  shared_.counters.online = shared_.counters.readable = true;
  spdlog::info("disk tier {} is online again", shared_.options.directory.string());
  announce("the device works again");
  KVTIER_STORAGE_POINT("storage.health.online");
}

BlockDevice::Duration Availability::until_next_look() const {
  if (!readable() && shared_.device.in_flight() > 0) return BlockDevice::kForever;
  const auto next = online()     ? next_look_
                    : readable() ? std::min(next_look_, health_.next_probe())
                                 : health_.next_probe();
  const auto left = std::chrono::ceil<BlockDevice::Duration>(next - Health::Clock::now());
  return std::max(left, BlockDevice::Duration(1));
}

}  // namespace kvtier::storage
