// A restart: what an earlier daemon left in memory becomes blocks again, as its slot tables say.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "core/base/points.h"
#include "daemon/cache/block_cache.h"
#include "daemon/cache/catalogue/disk_place.h"
#include "daemon/cache/catalogue/eviction_order.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

using storage::SlotEntry;
using storage::SlotState;

struct BlockCache::Adoption {
  const Left& left;
  std::uint64_t oldest_taken = 0;               // stamps before it have no room in the index
  std::array<std::vector<Recovered>, 2> order;  // of the device and the host tier
  std::set<std::pair<std::uint32_t, std::uint64_t>> writers;
  std::pair<NamespaceId, std::uint16_t> last{};  // namespace met, and its number
  bool any = false;                              // namespace met
  std::uint64_t newest = 0;
  std::uint64_t discarded = 0;
  std::uint64_t quarantined = 0;
};

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

Result<std::vector<ProcessId>> BlockCache::adopt(Left left) {
  // What the disks know of namespaces first: an orphan's size is only what a slot table says.
  if (auto good = disk_.open_namespaces(); !good) return good.error();
  Adoption adoption{left, oldest_with_room(left.extents, catalogue_.capacity()), {}, {}, {}};
  std::vector<storage::Extent*> extents;
  for (auto& extent : left.extents) {
    MemoryTier& tier = memory(extent->tier(), device_of({extent->id().value, 0}));
    extents.push_back(extent.get());
    const bool taken = tier.adopt(std::move(extent));
    KVTIER_CHECK(taken);
  }
  for (storage::Extent* extent : extents) adopt_slots(*extent, adoption);
  for (const Tier tier : {Tier::device, Tier::host}) {
    catalogue_.enlist_newest(oldest_first(catalogue_, adoption.order[index_of(tier)]), tier);
  }
  clock_ = std::max(clock_, adoption.newest + 1);
  KVTIER_POINT("daemon.adopted");
  if (!extents.empty()) {
    spdlog::info(
        "memory tiers: {} extents of an earlier kvtierd taken over: {} records in device "
        "memory, {} in host memory; {} slots may still be written to, {} were discarded",
        extents.size(), catalogue_.counts(Tier::device).blocks,
        catalogue_.counts(Tier::host).blocks, adoption.quarantined, adoption.discarded);
  }
  std::vector<ProcessId> writers;
  for (const auto& [pid, start_time] : adoption.writers) writers.push_back({pid, start_time});
  return writers;
}

// A piece's keys are looked up while the words that they need are on their way from memory.
void BlockCache::adopt_slots(storage::Extent& extent, Adoption& adoption) {
  constexpr std::uint32_t kPiece = 32;
  const std::uint32_t container = extent.id().value;
  MemoryTier& tier = memory(extent.tier(), device_of({container, 0}));
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
      adopt_reserved(tier, at, entry, adoption);
    } else if (!adopt_sealed(tier, at, entry, adoption)) {
      ++adoption.discarded;
      tier.give_back(at);
    }
  }
}

// False: the slot's record is not one that this daemon can serve, or another slot has it.
bool BlockCache::adopt_sealed(MemoryTier& tier, Place at, const SlotEntry& entry,
                              Adoption& adoption) {
  if (entry.last_access < adoption.oldest_taken || entry.last_access >= limits::kStampsMax ||
      (entry.block_index == 0) != entry.parent.is_zero()) {
    return false;
  }
  const std::uint64_t record_bytes = tier.extent(ExtentId(at.container))->shape().slot_bytes;
  const auto ns = adopt_namespace(entry.ns, record_bytes, adoption);
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
  adoption.newest = std::max(adoption.newest, entry.last_access);
  adoption.order[index_of(tier.tier())].push_back({entry.last_access, entry.block_index, id});
  return true;
}

// A namespace that nobody can say more of than its id has orphans, as on disk.
std::optional<std::uint16_t> BlockCache::adopt_namespace(const NamespaceId& id,
                                                         std::uint64_t record_bytes,
                                                         Adoption& adoption) {
  Namespaces& namespaces = catalogue_.namespaces();
  if (!adoption.any || adoption.last.first != id) {
    auto number = namespaces.find(id);
    if (number && !namespaces[*number].is_orphan()) {
      number = open_namespace(namespaces[*number].encoded).value();
    } else if (!number) {
      const auto encoded = adoption.left.encoding(id);
      const auto added =
          encoded.empty() ? namespaces.add_orphan(id, record_bytes) : open_namespace(encoded);
      if (!added) return std::nullopt;
      number = *added;
    }
    if (!namespaces[*number].is_orphan()) remember(*number);
    adoption.last = {id, *number};
    adoption.any = true;
  }
  const std::uint16_t number = adoption.last.second;
  if (namespaces[number].layout.record_bytes != record_bytes) return std::nullopt;
  return number;
}

void BlockCache::adopt_reserved(MemoryTier& tier, Place at, const SlotEntry& entry,
                                Adoption& adoption) {
  if (entry.state == SlotState::reserved) tier.table(at).set_quarantined(at.slot);
  const ProcessId writer{entry.owner_pid, entry.owner_start_time};
  reservations_.add_quarantined(slot_name(at), {.process = writer,
                                                .client = entry.owner_client,
                                                .tenant = tier.tenant_of(at),
                                                .tier = tier.tier(),
                                                .device = tier.device(),
                                                .slot_bytes = tier.slot_bytes(at)});
  adoption.writers.emplace(writer.pid, writer.start_time);
  ++adoption.quarantined;
}

}  // namespace kvtier::daemon
