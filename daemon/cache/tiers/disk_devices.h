// The devices of the disk tier: which of them can be used, which block lies where on them, and how
// much of them is whose. Owned by the control thread; outlives every operation of the stores.
//
// That a block is on disk is said by the catalogue, by its device and in its tenant's usage, which
// always agree; a record that is being written counts for its tenant from when it is sent. The
// blocks of a device that is offline are hidden, not forgotten: unavailable is not corrupt.
//
// It reads and writes no records, and does not choose: that is DiskRoom's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/cache/catalogue/catalogue.h"
#include "daemon/cache/catalogue/disk_place.h"
#include "daemon/cache/tiers/disk_device.h"
#include "daemon/cache/tiers/later.h"

namespace kvtier::daemon {

class DiskDevices {
 public:
  struct Port {
    storage::RecordStore* store = nullptr;
    std::string directory;
  };
  struct Options {
    std::uint64_t segments_bytes = 0;  // cap for segments, of each device
    std::uint64_t segment_bytes = 0;
    std::function<DiskDevice::Time()> now;
  };
  // The stores outlive this, and so does `later`, which may be set after this has been made.
  DiskDevices(const Options& options, std::span<const Port> ports, Catalogue& catalogue,
              const Later& later);
  DiskDevices(const DiskDevices&) = delete;

  std::span<const std::unique_ptr<DiskDevice>> all() const noexcept { return devices_; }
  std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(devices_.size()); }
  DiskDevice& operator[](std::uint32_t number) noexcept { return *devices_[number]; }
  const DiskDevice& operator[](std::uint32_t number) const noexcept { return *devices_[number]; }
  Place place_of(BlockId id) const noexcept {
    return catalogue_.block(id).places[index_of(Tier::disk)];
  }
  DiskDevice& of(BlockId id) noexcept { return *devices_[device_of(place_of(id))]; }

  // Those that can be written to: a set of bits, by number.
  std::uint32_t online() const noexcept { return online_; }
  bool any_online() const noexcept { return online_ != 0; }
  bool is_online(const Catalogue::Order& order) const noexcept {
    return (online_ >> order.device & 1) != 0;
  }
  // Whether a record that is written there now would be taken: nothing is to go for one that is
  // not.
  bool takes_records(std::uint32_t number) const noexcept {
    return devices_[number]->online() && devices_[number]->store().has_room();
  }
  bool any_takes_records() const noexcept {
    for (std::uint32_t number = 0; number < size(); ++number) {
      if (takes_records(number)) return true;
    }
    return false;
  }
  // What can be done with a device has changed, or the reason why not more can. Leases skip the
  // blocks of one that is offline from now on; the directory, which is advisory, follows in steps.
  void set_state(std::uint32_t number, storage::DiskState state, const std::string& why);

  // Forgets unheld blocks on disk; their slots are free once the index has forgotten them too.
  void forget(std::span<const BlockId> ids, Removal why);
  // None of it comes back from any of them, whether its blocks are known or not: older copies may
  // lie in slots that were given up (RecordStore::erase_for_good).
  void erase_for_good(const std::vector<storage::Erasure>& what);
  // As forget(), for one whose record does not hold: its slot is tested before it is used again.
  void retire(BlockId id, Removal why);
  // Takes a block that nobody holds from its slot, which is the caller's from now on.
  Place unplace(BlockId id, Removal why);

  // Of slots with a record of the tenant's, or being written with one. Those that the index has yet
  // to forget are nobody's.
  std::uint64_t used_by(TenantId tenant) const noexcept { return usage_.of(tenant); }
  void add_usage(TenantId tenant, std::uint64_t bytes) { usage_.add(tenant, bytes); }
  void subtract_usage(TenantId tenant, std::uint64_t bytes) { usage_.subtract(tenant, bytes); }
  // A namespace's blocks are another tenant's from now on.
  void move_usage(TenantId from, TenantId to, std::uint64_t bytes);
  std::uint64_t taken_bytes() const noexcept;
  std::uint64_t cap_bytes() const noexcept { return segments_bytes_ * devices_.size(); }

  // A slot is free that was not, or a device has come or gone: what waits for room may try again.
  std::function<void()> on_room;

 private:
  void free_from(std::uint32_t number);
  void republish_from(std::uint32_t number, std::uint32_t segment, std::uint64_t change);

  Catalogue& catalogue_;
  const Later& later_;
  std::uint64_t segments_bytes_;
  std::vector<std::unique_ptr<DiskDevice>> devices_;
  std::uint32_t online_ = 0;
  TenantUsage usage_;
};

}  // namespace kvtier::daemon
