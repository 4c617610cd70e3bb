// The disk tier as the rest of the cache sees it: the records that are read from it, and in front
// of its parts, each of which has its own header: the devices (DiskDevices), room on them
// (DiskRoom), the queue of writes (WriteThrough), what a start and a late device bring
// (DiskRecovery), and the stamps that are owed to the stores (AccessStamps). The I/O itself is the
// RecordStores', one a device. Owned by the control thread.
//
// A block whose record a failed sync left in doubt is on disk no more, and is written again where
// it is in the host tier too.
// A block being read holds its disk placement, so its slot is not written meanwhile. A record that
// does not hold is forgotten, and its slot tested before it is used again; one that cannot be
// reached now stays.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "daemon/cache/tiers/access_stamps.h"
#include "daemon/cache/tiers/disk_recovery.h"
#include "daemon/cache/tiers/write_through.h"

namespace kvtier::daemon {

class DiskTier {
 public:
  struct Options {
    std::uint64_t segments_bytes = 0;  // cap for segments, of each device
    std::uint64_t segment_bytes = 0;
    std::uint32_t write_queue_max = 0;        // blocks
    std::uint64_t write_queue_bytes_max = 0;  // of host memory held for them
    std::uint32_t writes_submitted_max = 64;
    Admission admission = Admission::all;
    std::uint64_t write_budget = 0;  // bytes a day; 0: none
    std::function<DiskDevice::Time()> now = std::chrono::steady_clock::now;
  };
  using Drop = WriteDrop;
  static constexpr const auto& kDropNames = kWriteDropNames;
  using Counts = DiskCounts;
  using Port = DiskDevices::Port;

  // The stores outlive this; none for a daemon without a disk tier.
  DiskTier(const Options& options, std::span<const Port> ports, Catalogue& catalogue,
           MemoryTier& host);
  DiskTier(const DiskTier&) = delete;

  std::span<const std::unique_ptr<DiskDevice>> devices() const noexcept { return devices_.all(); }
  const Counts& counts() const noexcept { return counts_; }

  // ---- records that are read

  // Reads `id` from disk into `to`. Errors now: no_space, unavailable. Until `done` the disk
  // placement is held; `done` must retire() the block after an error, but after `unavailable`.
  Result<void> read(BlockId id, Place to, std::function<void(Result<void>)> done);
  // Reads the block's record and checks it; one that does not hold is forgotten. Errors now:
  // not_found (not on disk), no_space (busy), unavailable; later: as RecordStore::scrub().
  Result<void> verify(BlockId id, std::function<void(Result<void>)> done);
  // Forgets a block whose record did not hold; its slot is tested. False, and nothing done,
  // where something reads it, which will find the same.
  bool retire(BlockId id, const Error& why);
  // The block in a slot, or in so many of its segment, may be evicted, or may be so no more.
  void set_evictable(Place at, bool evictable, std::uint32_t count) {
    devices_[device_of(at)].set_evictable(location_of(at).segment, evictable, count);
  }
  // As DiskDevices::forget().
  void forget(std::span<const BlockId> ids, Removal why) { devices_.forget(ids, why); }
  void erase_for_good(const std::vector<storage::Erasure>& what) { devices_.erase_for_good(what); }

  // ---- a restart, and devices that come late (DiskRecovery)

  Result<void> open_namespaces() { return recovery_.open_namespaces(); }
  Result<std::uint64_t> recover() { return recovery_.recover(); }
  std::string unknown_directory() const { return recovery_.unknown_directory(); }
  void invalidated(const NamespaceFilter& filter) { recovery_.invalidated(filter); }
  DiskRecovery& recovery() noexcept { return recovery_; }

  // ---- records that are written (WriteThrough)

  void committed(BlockId id) { writes_.committed(id); }
  void seen_again(BlockId id) { writes_.seen_again(id); }
  void demoted(BlockId id) { writes_.demoted(id); }
  bool minds_use() const noexcept { return writes_.minds_use(); }
  void owed(BlockId id) { writes_.owed(id); }
  LeftOut left_out() const noexcept { return writes_.left_out(); }
  void flush(std::function<void(Result<void>)> done) { writes_.flush(std::move(done)); }
  std::size_t queued() const noexcept { return writes_.queued(); }
  std::uint64_t queued_bytes() const noexcept { return writes_.queued_bytes(); }
  void set_admission(Admission admission) noexcept { writes_.set_admission(admission); }
  // Of a block, from which on it is written (Admission::expected_reuse).
  double write_chance_min() const noexcept { return writes_.budget().threshold(); }
  void set_write_budget(std::uint64_t per_day) noexcept { writes_.set_bytes_per_day(per_day); }
  void set_write_queue_bytes_max(std::uint64_t bytes) noexcept {
    writes_.set_queue_bytes_max(bytes);
  }

  // ---- room and usage (DiskRoom, DiskDevices)

  std::uint64_t taken_bytes() const noexcept { return devices_.taken_bytes(); }
  std::uint64_t cap_bytes() const noexcept { return devices_.cap_bytes(); }
  std::uint64_t used_by(TenantId tenant) const noexcept { return devices_.used_by(tenant); }
  std::uint64_t allowance(TenantId tenant) const noexcept { return room_.allowance(tenant); }
  void move_usage(TenantId from, TenantId to, std::uint64_t bytes) {
    devices_.move_usage(from, to, bytes);
  }
  std::uint32_t trim(TenantId tenant, std::uint32_t blocks_max) {
    return room_.trim(tenant, blocks_max);
  }

  // ---- what the stores are told beside

  void touched(BlockId id) { stamps_.touched(id); }
  // About once a second.
  void pass_stamps() { stamps_.tick(); }
  void write_stamps() { stamps_.write(); }
  void remember_namespace(std::uint16_t ns);
  void forget_namespace(const NamespaceId& id);
  void pass_time(std::uint32_t now) noexcept {
    writes_.pass_time(now);
    for (const auto& device : devices_.all()) device->pass_time(now);
  }

  // How far recover() is, now and then.
  std::function<void(const std::string& directory, std::uint64_t blocks)> on_recovering;
  // Called when this tier has ended its hold on a block, which may have been the last.
  std::function<void(BlockId)> on_unheld;
  // Called when a block's record is about to be given up for lost: pins of it end.
  std::function<void(BlockId)> on_lost;
  Later later;

 private:
  void given_up(std::uint32_t number, const std::vector<storage::LostRecord>& records);

  std::function<DiskDevice::Time()> now_;
  Catalogue& catalogue_;
  Counts counts_;
  DiskDevices devices_;
  DiskRoom room_;
  WriteThrough writes_;
  DiskRecovery recovery_;
  AccessStamps stamps_;
};

}  // namespace kvtier::daemon
