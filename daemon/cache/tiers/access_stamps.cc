#include "daemon/cache/tiers/access_stamps.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "core/base/points.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

void AccessStamps::touched(BlockId id) {
  const Block& block = catalogue_.block(id);
  if (devices_.size() == 0 || !block.tiers.has(Tier::disk) || block.stamp_dirty) return;
  catalogue_.set_stamp_dirty(id, true);
  gathered_.push_back(block.key);
  if (gathered_.size() < limits::kStampsGatheredMax) return;
  while (!going_.empty()) step();
  begin_round();
}

void AccessStamps::tick() {
  if (++ticks_ >= limits::kStampsEvery && going_.empty()) begin_round();
  if (!going_.empty()) step();
}

void AccessStamps::write() {
  for (int rounds = 0; rounds < 2; ++rounds) {
    while (!going_.empty()) step();
    begin_round();
  }
}

void AccessStamps::begin_round() noexcept {
  ticks_ = 0;
  going_.swap(gathered_);
}

void AccessStamps::step() {
  const std::size_t count = std::min<std::size_t>(going_.size(), limits::kStampsBatchMax);
  const auto keys = std::span(going_).last(count);
  std::vector<std::vector<std::pair<Key, std::uint64_t>>> stamps(devices_.size());
  for (const Key& key : keys) {
    const BlockId id = catalogue_.find_any(key);
    if (id == kNoBlock) continue;
    catalogue_.set_stamp_dirty(id, false);
    if (!catalogue_.block(id).tiers.has(Tier::disk)) continue;
    stamps[device_of(devices_.place_of(id))].emplace_back(key, catalogue_.block(id).last_access);
  }
  going_.resize(going_.size() - count);
  for (std::uint32_t number = 0; number < devices_.size(); ++number) {
    if (!stamps[number].empty()) devices_[number].store().touch(std::move(stamps[number]));
  }
  KVTIER_POINT("daemon.stamps.sent");
}

}  // namespace kvtier::daemon
