// What the tiers are made of: the memory of GPUs and of the host, and the stores of the disks. Made
// at the start as the configuration says, and closed at the end.
//
// Owned by the control thread. The order of GPUs and of directories is that of the configuration
// and never changes: it numbers the parts of their tiers. An extent of the host tier is known to
// every store from before its slots are used until the store has said that it has let go of it;
// only then does its memory go back. What takes the kernel long is done on Disposal's thread: only
// close() waits, and for a bounded time. Never looks at blocks: those are the cache's.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/cuda_driver.h"
#include "daemon/config/config.h"
#include "daemon/server/disposal.h"
#include "daemon/server/write_rate.h"
#include "storage/device/wrap_device.h"
#include "storage/memory/extent.h"
#include "storage/remote/remote_store.h"
#include "storage/store/record_store.h"

namespace kvtier::daemon {

class TierBacking {
 public:
  struct Ports {
    // Runs a task on the control thread.
    std::function<void(std::function<void()>)> post;
    // The same after a time.
    std::function<void(std::chrono::milliseconds, std::function<void()>)> after;
    std::function<void(const std::string&)> progress;
    // Around each disk's device, for tests; none: as it is.
    storage::WrapDevice wrap_device = {};
    // Opens the remote tier's store.
    std::function<Result<std::unique_ptr<storage::RemoteStore>>(const storage::RemoteOptions&,
                                                                storage::RemoteStore::Post)>
        open_remote = storage::open_remote_store;
  };
  // One a GPU of the device tier.
  struct Gpu {
    GpuUuid uuid;
    std::uint32_t number;  // as the driver counts
    std::string name;
    std::unique_ptr<storage::MemoryExtents> extents;
    std::uint64_t memory_bytes = 0;  // 0: not a GPU's
  };
  struct Disk {
    std::string directory;
    std::unique_ptr<storage::RecordStore> store;
    WriteRate write_rate;
  };

  // `disposal` outlives this, and has done all that it was given before what that is about goes.
  TierBacking(Ports ports, Disposal& disposal) : ports_(std::move(ports)), disposal_(disposal) {}

  // Errors: invalid, io, version, refused; each names the setting to mend.
  Result<void> open(const Config& config);
  // Every store, at most for limits::kCloseMax. False where one had not closed by then: its thread
  // can only be left behind.
  bool close();

  const std::vector<Gpu>& gpus() const noexcept { return gpus_; }
  const std::vector<Disk>& disks() const noexcept { return disks_; }
  storage::MemoryExtents& host() noexcept { return *host_; }
  // Null: there is no remote tier.
  storage::RemoteStore* remote() const noexcept { return remote_.get(); }
  // Of each directory's capacity, what segments may take; 0 without a disk tier.
  std::uint64_t segments_bytes() const noexcept { return segments_bytes_; }
  // What a person calls this part of a tier.
  std::string name_of_part(Tier tier, std::uint32_t device) const;
  // Whether each GPU has so much memory. Errors: invalid.
  Result<void> fits_gpus(std::uint64_t capacity_bytes) const;

  // The disks and the remote store may read and write there. One of the device tier is left alone.
  void register_extent(const storage::Extent& extent);
  // Takes an extent of a tier and calls `gone` when its memory has been given back.
  void dispose(std::unique_ptr<storage::Extent> extent, std::function<void()> gone);
  // About once a second.
  void note_write_rates(WriteRate::Time now);

 private:
  Result<void> open_gpus(const Config::Device& device);
  Result<void> open_disks(const Config::Disk& disk);
  Result<void> open_remote(const Config::Remote& remote);
  storage::RecordStoreOptions store_options(const Config::Disk& disk,
                                            const std::filesystem::path& directory) const;

  const Ports ports_;
  Disposal& disposal_;
  std::vector<Gpu> gpus_;
  std::unique_ptr<storage::MemoryExtents> host_;
  std::vector<Disk> disks_;
  std::shared_ptr<storage::RemoteStore> remote_;
  std::uint64_t segments_bytes_ = 0;
};

}  // namespace kvtier::daemon
