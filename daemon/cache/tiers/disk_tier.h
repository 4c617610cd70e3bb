// The disk tier as the control thread sees it: which device gets a record, the queue of
// write-through, the reads under way, and what becomes of the blocks of a device that fails. The
// I/O itself is the RecordStores', one a device.
//
// What always holds: a block in the write-through queue holds its host placement, so its bytes stay
// until they are written; a block being read holds its disk placement, so its slot is not written
// meanwhile. The blocks of a device that is offline are hidden, not forgotten: unavailable is not
// corrupt.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/cache/catalogue/catalogue.h"
#include "daemon/cache/catalogue/disk_place.h"
#include "daemon/cache/catalogue/eviction_order.h"
#include "daemon/cache/catalogue/selection.h"
#include "daemon/cache/tiers/disk_device.h"
#include "daemon/cache/tiers/memory_tier.h"
#include "daemon/config/config.h"

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
    std::function<DiskDevice::Time()> now = std::chrono::steady_clock::now;
  };
  // Why a block was not written to disk.
  enum class Drop : std::uint8_t { queue_full, offline, no_room, readers, quota };
  static constexpr std::array<const char*, 5> kDropNames{"queue_full", "offline", "no_room",
                                                         "readers", "quota"};
  struct Counts {
    std::uint64_t failures = 0;  // reads and writes that did not hold
    std::uint64_t dropped_writes = 0;
    std::array<std::uint64_t, kDropNames.size()> drops{};  // the same, by reason
    std::uint64_t moved_writes = 0;  // sent elsewhere because their device went offline
  };
  struct Port {
    storage::RecordStore* store = nullptr;
    std::string directory;
  };

  // The stores outlive this; none for a daemon without a disk tier.
  DiskTier(Options options, std::span<const Port> ports, Catalogue& catalogue, MemoryTier& host);

  bool present() const noexcept { return !devices_.empty(); }
  std::span<const std::unique_ptr<DiskDevice>> devices() const noexcept { return devices_; }

  // The directory of a device whose store could not be opened yet, so that nobody knows what it
  // holds; empty where there is none.
  std::string unknown_directory() const;
  // What such a device holds of these namespaces is forgotten when it comes.
  void invalidated(const NamespaceFilter& filter);

  // Makes the namespaces known that the stores know. recover() does it where nobody else has.
  Result<void> open_namespaces();
  // Takes over what the stores' indices hold, oldest first. Returns the newest stamp.
  Result<std::uint64_t> recover();

  // The block was committed: asks for it to be written if all are admitted.
  void committed(BlockId id, const Key& parent);
  // The block, which has a host placement, waited for the disk when an earlier daemon ended.
  void owed(BlockId id, const Key& parent);
  // The block, which has a host placement, was leased or committed again.
  void seen_again(BlockId id, const Key& parent);

  // Reads `id` from disk into `to`. Errors now: no_space, unavailable. Until `done` the disk
  // placement is held; `done` must retire() the block after an error, but after `unavailable`.
  Result<void> read(BlockId id, Place to, std::function<void(Result<void>)> done);

  // Forgets a block whose record did not hold; its slot is not used again. False, and nothing done,
  // where something reads it, which will find the same.
  bool retire(BlockId id, Removal why);

  // Forgets unheld blocks on disk; their slots are free once the index has forgotten them too.
  void forget(std::span<const BlockId> ids, Removal why);

  // `done` once every block queued before is written or given up, and all of it is on stable
  // storage. Errors: those of the stores; unavailable where a device went offline with writes not
  // yet stable.
  void flush(std::function<void(Result<void>)> done);

  void touched(BlockId id);
  void write_stamps();  // hands the stamps of touched blocks to the stores

  void remember_namespace(std::uint16_t ns);
  void forget_namespace(const NamespaceId& id);

  const Counts& counts() const noexcept { return counts_; }
  std::uint64_t taken_bytes() const noexcept;
  std::uint64_t cap_bytes() const noexcept { return options_.segments_bytes * devices_.size(); }
  // Of slots with a record of the tenant's, or being written with one. Those that the index has yet
  // to forget are nobody's.
  std::uint64_t used_by(TenantId tenant) const noexcept { return usage_.of(tenant); }
  std::uint64_t allowance(TenantId tenant) const noexcept;
  // A namespace's blocks are another tenant's from now on.
  void move_usage(TenantId from, TenantId to, std::uint64_t bytes);
  // Evicts at most `blocks_max` of the tenant's blocks above its quota. Returns how many.
  std::uint32_t trim(TenantId tenant, std::uint32_t blocks_max);
  std::size_t queued() const noexcept { return queue_.size() + writing_.size(); }
  std::uint64_t queued_bytes() const noexcept { return queued_bytes_; }
  void pass_time(std::uint32_t now) noexcept {
    for (const auto& device : devices_) device->pass_time(now);
  }

  void set_admission(Admission admission) noexcept { options_.admission = admission; }
  void set_write_queue_bytes_max(std::uint64_t bytes) noexcept {
    options_.write_queue_bytes_max = bytes;
  }

  // Of a device that came late (storage/store/late_store.h): a namespace that it knows, and the
  // newest stamps of its blocks, which are about to be taken over.
  std::function<void(std::span<const std::byte> encoded)> on_late_namespace;
  std::function<void(std::uint64_t stamp)> on_late_stamp;
  // How far recover() is, now and then.
  std::function<void(const std::string& directory, std::uint64_t blocks)> on_recovering;
  // Called when this tier has ended its hold on a block, which may have been the last.
  std::function<void(BlockId)> on_unheld;
  // Called when a block's record is about to be given up for lost: pins of it end.
  std::function<void(BlockId)> on_lost;
  // Runs a task in a later turn of the control thread; at once where it is not set. For work that
  // is done in steps.
  std::function<void(std::function<void()>)> later;

 private:
  struct Waiting {
    BlockId block;
    Key parent;
    std::uint64_t ticket;
    std::uint32_t attempts = 0;  // devices that went offline with it
  };
  struct Room {
    std::uint32_t device;
    storage::DiskLocation at;
    std::optional<Key> replaces;
  };
  struct Writing {
    Waiting what;
    Room room;
    std::optional<Result<void>> result;
    DiskDevice::Time began{};
  };
  struct Flush {
    std::uint64_t up_to;  // tickets below are settled
    std::function<void(Result<void>)> done;
  };
  DiskDevice& device(std::uint32_t number) noexcept { return *devices_[number]; }
  DiskDevice& device_of_block(BlockId id) noexcept { return device(device_of(place_of(id))); }
  Place place_of(BlockId id) const noexcept {
    return catalogue_.block(id).places[index_of(Tier::disk)];
  }
  Place unplace(BlockId id, Removal why);
  bool any_online() const noexcept { return online_ != 0; }
  std::uint64_t microseconds_since(DiskDevice::Time began) const;

  // disk_tier.cc
  void health_changed(std::uint32_t number, bool online, const std::string& why);
  void republish_from(std::uint32_t number, std::uint32_t segment, std::uint64_t change);
  void free_from(std::uint32_t number);
  void settle_flushes();
  void flush_devices(std::function<void(Result<void>)> done);

  // disk_writes.cc
  void write_through(BlockId id, const Key& parent);
  void pump();
  bool submit(const Waiting& next);
  Result<void> send(const Waiting& next, const Room& room);
  std::optional<Room> room_for(TenantId tenant, std::uint64_t record_bytes);
  std::optional<Room> free_room(std::uint64_t record_bytes);
  Room take_over(BlockId victim);
  bool over_quota(TenantId tenant, std::uint64_t more_bytes) const noexcept;
  bool evict_own(TenantId tenant, std::uint64_t record_bytes);
  bool empty_a_segment_for(TenantId tenant, std::uint64_t record_bytes);
  void empty_segment(std::uint32_t number, std::uint32_t segment, std::uint32_t slot);
  bool may_empty(std::span<const BlockId> segment, TenantId tenant) const;
  bool is_online(const Catalogue::Order& order) const noexcept {
    return (online_ >> order.device & 1) != 0;
  }
  void give_back(const Waiting& what, const Room& room, bool perhaps_written);
  void written(std::uint64_t ticket, const Result<void>& result);
  void settle(const Writing& done);
  void not_written(const Writing& done);
  bool move_elsewhere(const Waiting& what);
  void drop_write(Drop why) noexcept;
  void give_up(const Waiting& dropped, Drop why);
  void let_go(const Waiting& what);
  void note_owed(BlockId id, bool owed) noexcept;
  bool on_or_to(std::uint32_t number, const Key& key) const noexcept;

  // disk_recovery.cc
  Result<void> take_over_all(std::uint32_t number, std::vector<Recovered>& order);
  Result<BlockId> take_over(std::uint32_t number, const storage::DiskEntry& entry);
  void begin_late(std::uint32_t number);
  void take_over_late(std::uint32_t number);

  Options options_;
  Catalogue& catalogue_;
  MemoryTier& host_;
  std::vector<std::unique_ptr<DiskDevice>> devices_;
  std::uint32_t online_ = 0;   // devices, a set of bits
  std::deque<Waiting> queue_;  // by ticket
  // By ticket. Completions are settled in this order, which is the order of the blocks in their
  // prefixes and so keeps the eviction order right.
  std::map<std::uint64_t, Writing> writing_;
  std::uint64_t next_ticket_ = 1;
  bool emptying_ = false;
  bool pumping_ = false;
  bool namespaces_opened_ = false;
  std::vector<Key> dirty_;  // touched since the last write_stamps()
  std::deque<Flush> flushes_;
  std::uint64_t queued_bytes_ = 0;
  // Of devices that came late and whose blocks are being taken over: whether the store's last word
  // was that it is online.
  std::map<std::uint32_t, bool> late_;
  std::vector<NamespaceFilter> invalidated_;  // while a device's blocks were not known
  TenantUsage usage_;
  Counts counts_;
};

}  // namespace kvtier::daemon
