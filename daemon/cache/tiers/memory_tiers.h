// The memory tiers of a daemon: the host's, and the device tier with a part on each GPU. Owned by
// the control thread.
//
// There is always a part of the device tier, perhaps of no bytes. An extent's id has its GPU's
// number in its upper bits, so that a place says which part it is in, and a number of its own below
// them that no other extent of this lineage has, whichever part it is in.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "daemon/cache/catalogue/disk_place.h"
#include "daemon/cache/tiers/memory_tier.h"

namespace kvtier::daemon {

class MemoryTiers {
 public:
  struct Options {
    MemoryTier::Options device, host;  // the device tier's of each GPU
  };
  struct Ports {
    std::vector<storage::MemoryExtents*> devices;  // one a GPU; none: no device tier
    storage::MemoryExtents* host = nullptr;
    // Numbers for extents, never the same twice; without it they are counted from 1.
    std::function<std::uint32_t()> next_extent = {};
  };
  // `tenants` outlives this.
  MemoryTiers(const Options& options, Ports ports, const Tenants& tenants);
  MemoryTiers(const MemoryTiers&) = delete;

  MemoryTier& host() noexcept { return host_; }
  const MemoryTier& host() const noexcept { return host_; }
  // `device`: of the device tier, the part on this GPU.
  MemoryTier& of(Tier tier, std::uint32_t device) noexcept {
    return tier == Tier::device ? *devices_[device] : host_;
  }
  const MemoryTier& of(Tier tier, std::uint32_t device) const noexcept {
    return tier == Tier::device ? *devices_[device] : host_;
  }
  MemoryTier& of(Tier tier, Place at) noexcept { return of(tier, device_of(at)); }
  const MemoryTier& of(Tier tier, Place at) const noexcept { return of(tier, device_of(at)); }
  std::uint32_t devices() const noexcept { return static_cast<std::uint32_t>(devices_.size()); }

  // The tables of the slots that the block is in say its last use, from which a restart has it.
  void set_last_access(const Block& block, std::uint64_t stamp) noexcept {
    for (const Tier tier : {Tier::device, Tier::host}) {
      if (!block.tiers.has(tier)) continue;
      const Place at = block.places[index_of(tier)];
      of(tier, at).table(at).set_last_access(at.slot, stamp);
    }
  }

  // The host's tier first.
  template <class Visit>
  void each(Visit&& visit) {
    visit(host_);
    for (const auto& device : devices_) visit(*device);
  }

 private:
  ExtentId next_extent(std::uint32_t device);

  std::function<std::uint32_t()> next_number_;
  std::uint32_t next_extent_ = 1;
  std::vector<std::unique_ptr<MemoryTier>> devices_;  // by GPU
  MemoryTier host_;
};

}  // namespace kvtier::daemon
