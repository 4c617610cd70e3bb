#include "daemon/cache/adoption.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "core/base/check.h"
#include "core/base/points.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

using storage::SlotEntry;
using storage::SlotState;

namespace {

// The oldest stamp that still has room, where more blocks were left than the index holds.
std::uint64_t oldest_with_room(std::span<const std::unique_ptr<storage::Extent>> extents,
                               std::size_t room) {
  std::uint64_t slots = 0;
  for (const auto& extent : extents) slots += extent->shape().slots();
  if (slots <= room) return 0;
  std::vector<std::uint64_t> stamps;
  for (const auto& extent : extents) {
    for (std::uint32_t slot = 0; slot < extent->shape().slots(); ++slot) {
      const SlotEntry& entry = extent->table().entry(slot);
      if (entry.state == SlotState::sealed) stamps.push_back(entry.last_access);
    }
  }
  if (stamps.size() <= room) return 0;
  const auto last = stamps.begin() + static_cast<std::ptrdiff_t>(room - 1);
  std::ranges::nth_element(stamps, last, std::greater{});
  return *last;
}

}  // namespace

Adoption::Adopted Adoption::adopt(Left left) {
  encoding_ = std::move(left.encoding);
  oldest_taken_ = oldest_with_room(left.extents, catalogue_.capacity());
  std::vector<storage::Extent*> extents;
  for (auto& extent : left.extents) {
    MemoryTier& tier = memory_.of(extent->tier(), Place{extent->id().value, 0});
    extents.push_back(extent.get());
    const bool taken = tier.adopt(std::move(extent));
    KVTIER_CHECK(taken);
  }
  for (storage::Extent* extent : extents) adopt_slots(*extent);
  for (const Tier tier : {Tier::device, Tier::host}) {
    sort_newest_first(catalogue_, order_[index_of(tier)]);
    catalogue_.enlist_newest(order_[index_of(tier)], tier);
  }
  catalogue_.pass_stamp(newest_);
  KVTIER_POINT("daemon.adopted");
  if (!extents.empty()) {
    spdlog::info(
        "memory tiers: {} extents of an earlier kvtierd taken over: {} records in device "
        "memory, {} in host memory; {} slots may still be written to, {} were discarded",
        extents.size(), catalogue_.counts(Tier::device).blocks,
        catalogue_.counts(Tier::host).blocks, quarantined_, discarded_);
  }
  return {{writers_.begin(), writers_.end()}, std::move(owed_)};
}

// A piece's keys are looked up while the words that they need are on their way from memory.
void Adoption::adopt_slots(storage::Extent& extent) {
  constexpr std::uint32_t kPiece = 32;
  const std::uint32_t container = extent.id().value;
  MemoryTier& tier = memory_.of(extent.tier(), Place{container, 0});
  const std::uint32_t slots = extent.shape().slots();
  const auto prefetch = [&](std::uint32_t first) {
    std::array<Key, kPiece> keys;
    std::size_t count = 0;
    for (std::uint32_t slot = first; slot < std::min(first + kPiece, slots); ++slot) {
      const SlotEntry& entry = extent.table().entry(slot);
      if (entry.state == SlotState::sealed) keys[count++] = entry.key;
    }
    catalogue_.prefetch({keys.data(), count});
  };
  prefetch(0);
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    if (slot % kPiece == 0) prefetch(slot + kPiece);
    const SlotEntry& entry = extent.table().entry(slot);
    const Place at{container, slot};
    if (entry.state == SlotState::free) continue;
    if (entry.state != SlotState::sealed) {
      quarantine(tier, at, entry);
    } else if (!adopt_sealed(tier, at, entry)) {
      ++discarded_;
      tier.give_back(at);
    }
  }
}

// False: the slot's record is not one that this daemon can serve, or another slot has it.
bool Adoption::adopt_sealed(MemoryTier& tier, Place at, const SlotEntry& entry) {
  if (entry.last_access < oldest_taken_ || entry.last_access >= limits::kStampsMax ||
      (entry.block_index == 0) != entry.parent.is_zero()) {
    return false;
  }
  const std::uint64_t record_bytes = tier.extent(ExtentId(at.container))->shape().slot_bytes;
  const auto ns = namespace_of(entry.ns, record_bytes);
  if (!ns || !tier.assign(at, catalogue_.namespaces()[*ns].tenant)) return false;
  BlockId id = catalogue_.find_any(entry.key);
  if (id == kNoBlock) {
    id = catalogue_.add(*ns, entry.key, entry.parent, entry.block_index);
    if (id == kNoBlock) return false;
    catalogue_.set_last_access(id, entry.last_access);
  } else {
    const Block& block = catalogue_.block(id);
    if (block.ns != *ns || block.block_index != entry.block_index || block.tiers.has(tier.tier()))
      return false;
    catalogue_.set_last_access(id, std::max(block.last_access, entry.last_access));
  }
  tier.set_block(at, id);
  catalogue_.place_unlisted(id, tier.tier(), at);
  if (tier.tier() == Tier::host && (entry.flags & storage::kDiskOwed) != 0)
    owed_.emplace_back(id, entry.parent);
  newest_ = std::max(newest_, entry.last_access);
  order_[index_of(tier.tier())].push_back(id);
  return true;
}

// A namespace that nobody can say more of than its id has orphans, as on disk.
std::optional<std::uint16_t> Adoption::namespace_of(const NamespaceId& id,
                                                    std::uint64_t record_bytes) {
  Namespaces& known = catalogue_.namespaces();
  if (!last_ || last_->first != id) {
    auto number = known.find(id);
    if (number && !known[*number].is_orphan()) {
      number = namespaces_.open(known[*number].encoded).value();
    } else if (!number) {
      const auto encoded = encoding_(id);
      const auto added =
          encoded.empty() ? known.add_orphan(id, record_bytes) : namespaces_.open(encoded);
      if (!added) return std::nullopt;
      number = *added;
    }
    if (!known[*number].is_orphan()) placements_.remember(*number);
    last_ = {id, *number};
  }
  const std::uint16_t number = last_->second;
  if (known[number].layout.record_bytes != record_bytes) return std::nullopt;
  return number;
}

void Adoption::quarantine(MemoryTier& tier, Place at, const SlotEntry& entry) {
  if (entry.state == SlotState::reserved) tier.table(at).set_quarantined(at.slot);
  const ProcessId writer{entry.owner_pid, entry.owner_start_time};
  reservations_.add_quarantined(slot_name(at), {.process = writer,
                                                .client = entry.owner_client,
                                                .tenant = tier.tenant_of(at),
                                                .tier = tier.tier(),
                                                .device = tier.device(),
                                                .slot_bytes = tier.slot_bytes(at)});
  writers_.insert(writer);
  ++quarantined_;
}

}  // namespace kvtier::daemon
