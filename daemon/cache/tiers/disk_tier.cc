#include "daemon/cache/tiers/disk_tier.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/points.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

using storage::DiskLocation;

DiskTier::DiskTier(Options options, std::span<const Port> ports, Catalogue& catalogue,
                   MemoryTier& host)
    : options_(std::move(options)), catalogue_(catalogue), host_(host) {
  KVTIER_CHECK(ports.size() <= limits::kDisksMax);
  for (const Port& port : ports) {
    const auto number = static_cast<std::uint32_t>(devices_.size());
    devices_.push_back(
        std::make_unique<DiskDevice>(DiskDevice::Options{port.directory, options_.segments_bytes,
                                                         options_.segment_bytes, options_.now},
                                     *port.store));
    online_ |= 1U << number;
    port.store->on_health([this, number](bool online, const std::string& why) {
      health_changed(number, online, why);
    });
  }
}

std::uint64_t DiskTier::taken_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (const auto& device : devices_) bytes += device->space().bytes_taken();
  return bytes;
}

Place DiskTier::unplace(BlockId id, Removal why) {
  usage_.subtract(catalogue_.tenant(id), catalogue_.record_bytes(id));
  const Place at = catalogue_.unplace(id, Tier::disk, why);
  device(device_of(at)).set_block(location_of(at), kNoBlock);
  return at;
}

std::uint64_t DiskTier::allowance(TenantId tenant) const noexcept {
  return std::min(cap_bytes(), catalogue_.tenants().limits(tenant, Tier::disk).quota);
}

void DiskTier::move_usage(TenantId from, TenantId to, std::uint64_t bytes) {
  if (from == to || bytes == 0) return;
  usage_.subtract(from, bytes);
  usage_.add(to, bytes);
}

std::uint32_t DiskTier::trim(TenantId tenant, std::uint32_t blocks_max) {
  std::vector<BlockId> going;
  std::uint64_t used = usage_.of(tenant);
  const std::uint64_t allowed = allowance(tenant);
  const auto of_tenant = [&](const Catalogue::Order& order) {
    return order.tenant == tenant && is_online(order);
  };
  // Along one order, the coldest one's; the next time it may be another.
  BlockId id = used > allowed ? catalogue_.coldest(Tier::disk, of_tenant) : kNoBlock;
  for (; id != kNoBlock && used > allowed && going.size() < blocks_max;
       id = catalogue_.evicted_after(id, Tier::disk)) {
    going.push_back(id);
    used -= catalogue_.record_bytes(id);
  }
  if (!going.empty()) forget(going, Removal::quota);
  return static_cast<std::uint32_t>(going.size());
}

// Leases skip the device's blocks from now on. The directory, which is advisory, follows in steps:
// there may be millions of them.
void DiskTier::health_changed(std::uint32_t number, bool online, const std::string& why) {
  if (const auto late = late_.find(number); late != late_.end()) {
    late->second = online;
    return device(number).set_why(why);
  }
  if (online && device(number).store().to_recover()) return begin_late(number);
  if (device(number).online() == online) return device(number).set_why(why);
  KVTIER_POINT("daemon.disk.health");
  device(number).set_online(online, why);
  online_ = online ? online_ | 1U << number : online_ & ~(1U << number);
  catalogue_.hide_device(number, !online);
  if (online) {
    spdlog::info("disk tier: {} is online again, with {} blocks", device(number).directory(),
                 device(number).blocks());
  } else {
    spdlog::error("disk tier: {} is offline, {} blocks are out of reach: {}",
                  device(number).directory(), device(number).blocks(), why);
  }
  if (online) free_from(number);
  republish_from(number, 0, device(number).health_changes());
  pump();
}

void DiskTier::free_from(std::uint32_t number) {
  while (device(number).free_some()) {
    if (!later) continue;
    return later([this, number] {
      free_from(number);
      pump();
    });
  }
}

// Ends early if the health has changed again, which began anew.
void DiskTier::republish_from(std::uint32_t number, std::uint32_t segment, std::uint64_t change) {
  const DiskDevice& of = device(number);
  if (of.health_changes() != change) return;
  std::uint32_t passed = 0;
  for (; segment < of.segments(); ++segment) {
    if (passed >= limits::kRepublishStep && later) {
      return later([this, number, segment, change] { republish_from(number, segment, change); });
    }
    for (const BlockId id : of.blocks_in(segment)) {
      ++passed;
      if (id != kNoBlock) catalogue_.republish(id);
    }
  }
}

std::uint64_t DiskTier::microseconds_since(DiskDevice::Time began) const {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(options_.now() - began).count());
}

Result<void> DiskTier::read(BlockId id, Place to, std::function<void(Result<void>)> done) {
  const Block& block = catalogue_.block(id);
  const std::uint64_t bytes = catalogue_.record_bytes(id);
  const Place from = place_of(id);
  storage::RecordStore::Read read;
  read.ns = catalogue_.namespaces()[block.ns].id;
  read.key = block.key;
  read.from = location_of(from);
  read.slot_bytes = bytes;
  read.extent = ExtentId(to.container);
  read.slot = to.slot;
  read.record_bytes = bytes;
  if (!catalogue_.hold(id, Tier::disk)) {
    return make_error(Errc::no_space, "too many readers of one block");
  }
  DiskDevice& on = device(device_of(from));
  const DiskDevice::Time began = on.began();
  auto sent = on.store().read(
      read, [this, id, &on, began, done = std::move(done)](const Result<void>& result) {
        on.ended();
        catalogue_.unhold(id, Tier::disk);
        if (result) on.counts.read_us.add(microseconds_since(began));
        if (!result && result.error().code != Errc::unavailable) {
          // Forgotten, so that it is not asked for again, and its slot is not used again.
          ++counts_.failures;
          ++(result.error().code == Errc::corrupt ? on.counts.corrupt : on.counts.failures);
          spdlog::warn("disk tier: block {} did not hold: {}", to_hex(catalogue_.block(id).key),
                       result.error().message);
        }
        done(result);
      });
  if (!sent) {
    on.ended();
    catalogue_.unhold(id, Tier::disk);
  }
  return sent;
}

bool DiskTier::retire(BlockId id, Removal why) {
  if (on_lost) on_lost(id);
  if (catalogue_.block(id).holds[index_of(Tier::disk)] != 0) return false;
  const Key key = catalogue_.block(id).key;
  const Place at = unplace(id, why);
  DiskDevice& on = device(device_of(at));
  on.space().retire(location_of(at));
  on.erase({key}, {}, [this] { pump(); });
  KVTIER_POINT("daemon.disk.retired");
  return true;
}

void DiskTier::forget(std::span<const BlockId> ids, Removal why) {
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
    devices_[number]->erase(std::move(keys[number]), std::move(slots[number]), [this] { pump(); });
  }
  KVTIER_POINT("daemon.disk.forgotten");
}

void DiskTier::flush(std::function<void(Result<void>)> done) {
  if (!present()) return done({});
  flushes_.push_back({next_ticket_, std::move(done)});
  settle_flushes();
}

void DiskTier::settle_flushes() {
  while (!flushes_.empty()) {
    const std::uint64_t up_to = flushes_.front().up_to;
    const bool queued_before = !queue_.empty() && queue_.front().ticket < up_to;
    const bool writing_before = !writing_.empty() && writing_.begin()->first < up_to;
    if (queued_before || writing_before) return;
    auto done = std::move(flushes_.front().done);
    flushes_.pop_front();
    flush_devices(std::move(done));
  }
}

// All devices at a time. One that is offline matters only if it may have lost what was written to
// it.
void DiskTier::flush_devices(std::function<void(Result<void>)> done) {
  struct Joined {
    std::size_t waiting = 1;
    Result<void> result;
    std::function<void(Result<void>)> done;
  };
  const auto joined = std::make_shared<Joined>();
  joined->done = std::move(done);
  const auto ended = [joined](const Result<void>& result) {
    if (!result && joined->result) joined->result = result;
    if (--joined->waiting > 0) return;
    KVTIER_POINT("daemon.flush.done");
    joined->done(joined->result);
  };
  KVTIER_POINT("daemon.flush.sent");
  for (const auto& on : devices_) {
    if (!on->online() && !on->unsynced()) continue;
    ++joined->waiting;
    on->flush(ended);
  }
  ended({});
}

void DiskTier::touched(BlockId id) {
  const Block& block = catalogue_.block(id);
  if (!present() || !block.tiers.has(Tier::disk) || block.stamp_dirty) return;
  catalogue_.set_stamp_dirty(id, true);
  dirty_.push_back(block.key);
  if (dirty_.size() >= limits::kStampsBatchMax) write_stamps();
}

void DiskTier::write_stamps() {
  if (!present() || dirty_.empty()) return;
  std::vector<std::vector<std::pair<Key, std::uint64_t>>> stamps(devices_.size());
  for (const Key& key : dirty_) {
    const BlockId id = catalogue_.find_any(key);
    if (id == kNoBlock) continue;
    catalogue_.set_stamp_dirty(id, false);
    if (!catalogue_.block(id).tiers.has(Tier::disk)) continue;
    stamps[device_of(place_of(id))].emplace_back(key, catalogue_.block(id).last_access);
  }
  dirty_.clear();
  for (std::size_t number = 0; number < devices_.size(); ++number) {
    if (!stamps[number].empty()) devices_[number]->store().touch(std::move(stamps[number]));
  }
  KVTIER_POINT("daemon.stamps.sent");
}

void DiskTier::remember_namespace(std::uint16_t ns) {
  const auto& known = catalogue_.namespaces()[ns];
  for (const auto& on : devices_) on->store().remember_namespace(known.id, known.encoded);
  if (present()) KVTIER_POINT("daemon.namespace.remembered");
}

void DiskTier::forget_namespace(const NamespaceId& id) {
  for (const auto& on : devices_) on->store().forget_namespace(id);
}

}  // namespace kvtier::daemon
