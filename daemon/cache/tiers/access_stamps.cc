#include "daemon/cache/tiers/access_stamps.h"

#include <cstdint>
#include <utility>

#include "core/base/points.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

void AccessStamps::touched(BlockId id) {
  const Block& block = catalogue_.block(id);
  if (devices_.size() == 0 || !block.tiers.has(Tier::disk) || block.stamp_dirty) return;
  catalogue_.set_stamp_dirty(id, true);
  dirty_.push_back(block.key);
  if (dirty_.size() >= limits::kStampsBatchMax) write();
}

void AccessStamps::write() {
  if (dirty_.empty()) return;
  std::vector<std::vector<std::pair<Key, std::uint64_t>>> stamps(devices_.size());
  for (const Key& key : dirty_) {
    const BlockId id = catalogue_.find_any(key);
    if (id == kNoBlock) continue;
    catalogue_.set_stamp_dirty(id, false);
    if (!catalogue_.block(id).tiers.has(Tier::disk)) continue;
    stamps[device_of(devices_.place_of(id))].emplace_back(key, catalogue_.block(id).last_access);
  }
  dirty_.clear();
  for (std::uint32_t number = 0; number < devices_.size(); ++number) {
    if (!stamps[number].empty()) devices_[number].store().touch(std::move(stamps[number]));
  }
  KVTIER_POINT("daemon.stamps.sent");
}

}  // namespace kvtier::daemon
