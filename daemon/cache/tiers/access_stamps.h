// Stamps of blocks on disk that have been used, until the stores are handed them: a restart has the
// eviction order from them. Owned by the control thread.
//
// Of a block there is at most one, marked in the block (stamp_dirty); what is handed over is its
// stamp by then. They are gathered for a minute, so that a block in use costs its index a write a
// minute, and handed over in steps. A bounded number is gathered; what outgrows it goes sooner.
#pragma once

#include <vector>

#include "daemon/cache/tiers/disk_devices.h"

namespace kvtier::daemon {

class AccessStamps {
 public:
  AccessStamps(Catalogue& catalogue, DiskDevices& devices) noexcept
      : catalogue_(catalogue), devices_(devices) {}

  // The block, on disk or not, was used.
  void touched(BlockId id);
  // About once a second.
  void tick();
  // All of them, at a stop.
  void write();

 private:
  void begin_round() noexcept;
  void step();

  Catalogue& catalogue_;
  DiskDevices& devices_;
  // By key: the block may be another by then.
  std::vector<Key> gathered_, going_;
  std::uint32_t ticks_ = 0;  // since the last round began
};

}  // namespace kvtier::daemon
