// Stamps of blocks on disk that have been used, until the stores are handed them: a restart has the
// eviction order from them. Owned by the control thread.
//
// Of a block there is at most one, marked in the block (stamp_dirty); what is handed over is its
// stamp by then. A bounded number waits; what outgrows it is handed over at once.
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
  void write();

 private:
  Catalogue& catalogue_;
  DiskDevices& devices_;
  std::vector<Key> dirty_;  // by key: the block may be another by then
};

}  // namespace kvtier::daemon
