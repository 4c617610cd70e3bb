#include "daemon/cache/tiers/disk_devices.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "core/base/check.h"
#include "core/base/points.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

using storage::DiskLocation;

DiskDevices::DiskDevices(const Options& options, std::span<const Port> ports, Catalogue& catalogue,
                         const Later& later)
    : catalogue_(catalogue), later_(later), segments_bytes_(options.segments_bytes) {
  KVTIER_CHECK(ports.size() <= limits::kDisksMax);
  for (const Port& port : ports) {
    online_ |= 1U << devices_.size();
    devices_.push_back(
        std::make_unique<DiskDevice>(DiskDevice::Options{port.directory, options.segments_bytes,
                                                         options.segment_bytes, options.now},
                                     *port.store));
  }
}

std::uint64_t DiskDevices::taken_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (const auto& device : devices_) bytes += device->space().bytes_taken();
  return bytes;
}

void DiskDevices::move_usage(TenantId from, TenantId to, std::uint64_t bytes) {
  if (from == to || bytes == 0) return;
  usage_.subtract(from, bytes);
  usage_.add(to, bytes);
}

// ---- health

void DiskDevices::set_state(std::uint32_t number, storage::DiskState state,
                            const std::string& why) {
  DiskDevice& of = *devices_[number];
  if (of.state() == state) return of.set_why(why);
  KVTIER_POINT("daemon.disk.health");
  of.set_state(state, why);
  const bool online = of.online();
  online_ = online ? online_ | 1U << number : online_ & ~(1U << number);
  catalogue_.hide_device(number, !of.readable());
  if (online) {
    spdlog::info("disk tier: {} is online again, with {} blocks", of.directory(), of.blocks());
  } else if (of.readable()) {
    spdlog::error("disk tier: {} is read-only, nothing more is written there: {}", of.directory(),
                  why);
  } else {
    spdlog::error("disk tier: {} is offline, {} blocks are out of reach: {}", of.directory(),
                  of.blocks(), why);
  }
  if (online) free_from(number);
  republish_from(number, 0, of.health_changes());
  on_room();
}

void DiskDevices::free_from(std::uint32_t number) {
  while (devices_[number]->free_some()) {
    if (!later_) continue;
    return later_([this, number] {
      free_from(number);
      on_room();
    });
  }
}

// In steps: there may be millions of them. Ends early if the health has changed again, which began
// anew.
void DiskDevices::republish_from(std::uint32_t number, std::uint32_t segment,
                                 std::uint64_t change) {
  const DiskDevice& of = *devices_[number];
  if (of.health_changes() != change) return;
  std::uint32_t passed = 0;
  for (; segment < of.segments(); ++segment) {
    if (passed >= limits::kRepublishStep && later_) {
      return later_([this, number, segment, change] { republish_from(number, segment, change); });
    }
    for (const BlockId id : of.blocks_in(segment)) {
      ++passed;
      if (id != kNoBlock) catalogue_.republish(id);
    }
  }
}

// ---- what lies where

Place DiskDevices::unplace(BlockId id, Removal why) {
  usage_.subtract(catalogue_.tenant(id), catalogue_.record_bytes(id));
  const Place at = catalogue_.unplace(id, Tier::disk, why);
  devices_[device_of(at)]->set_block(location_of(at), kNoBlock);
  return at;
}

void DiskDevices::erase_for_good(const std::vector<storage::Erasure>& what) {
  if (what.empty()) return;
  for (const auto& device : devices_) device->store().erase_for_good(what);
}

void DiskDevices::retire(BlockId id, Removal why) {
  const Key key = catalogue_.block(id).key;
  const Place at = unplace(id, why);
  devices_[device_of(at)]->doubt(location_of(at), {key}, [this] { on_room(); });
  KVTIER_POINT("daemon.disk.retired");
}

void DiskDevices::forget(std::span<const BlockId> ids, Removal why) {
  std::vector<std::vector<Key>> keys(devices_.size());
  std::vector<std::vector<DiskLocation>> slots(devices_.size());
  for (const BlockId id : ids) catalogue_.prefetch({&catalogue_.block(id).key, 1});
  for (const BlockId id : ids) {
    const Key key = catalogue_.block(id).key;
    const Place at = unplace(id, why);
    keys[device_of(at)].push_back(key);
    slots[device_of(at)].push_back(location_of(at));
  }
  for (std::size_t number = 0; number < devices_.size(); ++number) {
    if (keys[number].empty()) continue;
    devices_[number]->erase(std::move(keys[number]), std::move(slots[number]),
                            [this] { on_room(); });
  }
  KVTIER_POINT("daemon.disk.forgotten");
}

}  // namespace kvtier::daemon
