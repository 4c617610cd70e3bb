// The tiers of a running daemon: the cache, the directory that clients read, what both stand on,
// and the memory of an earlier daemon where there is some.
//
// Owned by the control thread. open(), take_memory() and recover() come in that order, once each,
// before anybody is served; nobody is told of an extent that a manager was not given first
// (KeptMemory). The caps are the only part of the configuration that is changed later, by their
// setters alone. Knows of no session: who is to be told of what happens here is the Server's to
// say (the cache's callbacks, on_extent_gone).
#pragma once

#include <memory>

#include "daemon/cache/block_cache.h"
#include "daemon/restart/kept_memory.h"
#include "daemon/server/tier_backing.h"

namespace kvtier::daemon {

class Tiers {
 public:
  // `passed` outlives this.
  Tiers(TierBacking::Ports ports, PassedDescriptors& passed)
      : ports_(ports), passed_(passed), backing_(std::move(ports), disposal_) {}

  // Errors: invalid, io, version, refused; each names the setting to mend.
  Result<void> open(const Config& config);
  // Takes over what an earlier daemon left in memory. Returns the processes that may be writing
  // there (see BlockCache::adopt()). Errors: refused, io, no_space.
  Result<std::vector<ProcessId>> take_memory();
  // Takes over what is on disk.
  Result<void> recover() { return cache_->recover(); }

  // The kernel's random bytes: new at each start.
  const std::array<std::byte, 16>& boot_id() const noexcept { return boot_id_; }
  const Lineage& lineage() const noexcept { return kept_.lineage(); }
  BlockCache& cache() const noexcept { return *cache_; }
  DirectoryWriter& directory() const noexcept { return *directory_; }
  TierBacking& backing() noexcept { return backing_; }
  const TierBacking& backing() const noexcept { return backing_; }

  void set_host_cap(std::uint64_t bytes);
  // Of each GPU. Errors: invalid (a GPU has less memory).
  Result<void> set_device_cap(std::uint64_t bytes);

  // In a turn of its own, when an extent is no more: a session may just be about to tell of it.
  std::function<void(storage::ExtentId)> on_extent_gone;

 private:
  void make_cache(const Config& config);
  void connect(MemoryTier& memory);

  const TierBacking::Ports ports_;
  PassedDescriptors& passed_;
  KeptMemory kept_;
  KeptMemory::Room kept_room_;
  std::array<std::byte, 16> boot_id_{};
  TierBacking backing_;
  std::unique_ptr<DirectoryWriter> directory_;
  std::unique_ptr<BlockCache> cache_;
  Disposal disposal_;  // last: what it was given is done before anything of it goes
};

}  // namespace kvtier::daemon
