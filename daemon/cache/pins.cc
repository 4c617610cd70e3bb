#include "daemon/cache/pins.h"

#include <utility>

#include "core/base/check.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

Pins::Pins(Catalogue& catalogue, BytesMax bytes_max)
    : catalogue_(catalogue), bytes_max_(std::move(bytes_max)) {}

Pins::Outcome Pins::pin(BlockId id, Tier tier, Time until) {
  const Block& block = catalogue_.block(id);
  if (!block.tiers.has(tier) || block.doomed) return Outcome::absent;
  const Placement at = placement(id, tier);
  if (block.pinned.has(tier)) {
    move_end(at, until);
    return Outcome::again;
  }
  const std::uint64_t bytes = catalogue_.record_bytes(id);
  const std::uint32_t device = catalogue_.device(id, tier);
  std::uint64_t& of_part = bytes_of_part_[{tier, device}];
  if (until_.size() >= limits::kPinsMax || of_part + bytes > bytes_max_(tier, device) ||
      !catalogue_.hold(id, tier)) {
    return Outcome::no_room;
  }
  of_part += bytes;
  ++blocks_[index_of(tier)];
  bytes_[index_of(tier)] += bytes;
  catalogue_.set_pinned(id, block.pinned.with(tier));
  until_.emplace(at, until);
  by_end_.insert(end_of(at, until));
  return Outcome::pinned;
}

void Pins::move_end(Placement at, Time until) {
  Time& end = until_.at(at);
  by_end_.erase(end_of(at, end));
  end = until;
  by_end_.insert(end_of(at, until));
}

bool Pins::unpin_soon(BlockId id, Tier tier) {
  if (!catalogue_.block(id).pinned.has(tier)) return false;
  move_end(placement(id, tier), kAtOnce);
  return true;
}

bool Pins::unpin(BlockId id, Tier tier) {
  const Block& block = catalogue_.block(id);
  if (!block.pinned.has(tier)) return false;
  const Placement at = placement(id, tier);
  const auto found = until_.find(at);
  KVTIER_CHECK(found != until_.end());
  by_end_.erase(end_of(at, found->second));
  until_.erase(found);
  const std::uint64_t bytes = catalogue_.record_bytes(id);
  bytes_of_part_[{tier, catalogue_.device(id, tier)}] -= bytes;
  --blocks_[index_of(tier)];
  bytes_[index_of(tier)] -= bytes;
  catalogue_.set_pinned(id, block.pinned.without(tier));
  // Behind its parent, if that is evictable again.
  catalogue_.unhold(id, tier, catalogue_.parent(id));
  return true;
}

void Pins::unpin_everywhere(BlockId id) {
  for (const Tier tier : kAllTiers) unpin(id, tier);
}

bool Pins::expire(Time now, std::uint32_t most) {
  for (std::uint32_t ended = 0; ended < most; ++ended) {
    if (by_end_.empty() || std::get<Time>(*by_end_.begin()) > now) return false;
    const Placement at = std::get<Placement>(*by_end_.begin());
    unpin(block_of(at), static_cast<Tier>(at & 0xFF));
  }
  return true;
}

std::optional<Pins::Time> Pins::until(BlockId id, Tier tier) const {
  const auto found = until_.find(placement(id, tier));
  if (found == until_.end()) return std::nullopt;
  return found->second;
}

}  // namespace kvtier::daemon
