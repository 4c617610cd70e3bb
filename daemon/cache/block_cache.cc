#include "daemon/cache/block_cache.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/points.h"
#include "core/record/digest.h"
#include "core/record/record.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

BlockCache::BlockCache(Options options, Ports ports)
    : options_(options),
      catalogue_(options.blocks_max, *ports.directory, options.tenants),
      next_number_(std::move(ports.next_extent)),
      host_(
          Tier::host, options.host, ports.host, [this] { return next_extent(0); }, 0,
          &catalogue_.tenants()),
      disk_(options.disk, ports.disks, catalogue_, host_),
      pins_(catalogue_,
            [this](Tier tier, std::uint32_t device) { return pinned_bytes_max(tier, device); }) {
  KVTIER_CHECK(ports.devices.size() <= limits::kGpusMax);
  const auto of_device = ports.devices.empty() ? MemoryTier::Options{} : options.device;
  if (ports.devices.empty()) ports.devices.push_back(nullptr);
  for (std::uint32_t device = 0; device < ports.devices.size(); ++device) {
    devices_.push_back(std::make_unique<MemoryTier>(
        Tier::device, of_device, ports.devices[device],
        [this, device] { return next_extent(device); }, device, &catalogue_.tenants()));
  }
  disk_.on_unheld = [this](BlockId id) { settle(id); };
  disk_.on_late_namespace = [this](std::span<const std::byte> encoded) {
    if (const auto opened = open_namespace(encoded); !opened) {
      spdlog::warn("disk tier: a namespace is not understood: {}", opened.error().message);
    }
  };
  disk_.on_late_stamp = [this](std::uint64_t stamp) { clock_ = std::max(clock_, stamp + 1); };
  catalogue_.on_evictable = [this](Tier tier, Place at, TenantId tenant, bool evictable) {
    memory(tier, at).set_evictable(at, tenant, evictable);
  };
  disk_.on_lost = [this](BlockId id) { pins_.unpin(id, Tier::disk); };
}

// The device's number is above the extent's own, which no device shares with another.
ExtentId BlockCache::next_extent(std::uint32_t device) {
  const std::uint32_t number = next_number_ ? next_number_() : next_extent_++;
  KVTIER_CHECK(number < 1U << limits::kExtentBits);
  return ExtentId(device << limits::kExtentBits | number);
}

Result<void> BlockCache::recover() {
  auto newest = disk_.recover();
  if (!newest) return newest.error();
  clock_ = std::max(clock_, *newest + 1);
  for (const auto& [id, parent] : std::exchange(owed_, {})) disk_.owed(id, parent);
  return {};
}

void BlockCache::pass_time(std::uint32_t now) {
  catalogue_.ages().pass(now, clock_);
  for (const auto& part : devices_) part->pass_time(now);
  host_.pass_time(now);
  disk_.pass_time(now);
}

Result<std::uint16_t> BlockCache::open_namespace(std::span<const std::byte> encoded, UserId owner) {
  forget_misfits(encoded);
  forget_others_orphans(encoded);
  const auto known = catalogue_.namespaces().find(NamespaceId{xxh3_128(encoded)});
  const TenantId before = known ? catalogue_.namespaces()[*known].tenant : kDefaultTenant;
  auto ns = catalogue_.open_namespace(encoded, owner);
  if (!ns && ns.error().code == Errc::no_space) {
    forget_unused_namespaces();
    ns = catalogue_.open_namespace(encoded, owner);
  }
  if (ns && known) {
    const KnownNamespace& of = catalogue_.namespaces()[*ns];
    disk_.move_usage(before, of.tenant, of.bytes[index_of(Tier::disk)]);
  }
  if (ns && catalogue_.namespaces()[*ns].blocks != 0) remember(*ns);
  if (ns) host_.expect(catalogue_.namespaces()[*ns].layout.record_bytes);
  return ns;
}

bool BlockCache::knows_namespace(std::span<const std::byte> encoded) const {
  const auto known = catalogue_.namespaces().find(NamespaceId{xxh3_128(encoded)});
  return known && !catalogue_.namespaces()[*known].closed;
}

// Not before there is something to remember it for.
void BlockCache::remember(std::uint16_t ns) {
  if (std::exchange(catalogue_.namespaces()[ns].remembered, true)) return;
  if (on_namespace) on_namespace(catalogue_.namespaces()[ns]);
  disk_.remember_namespace(ns);
}

void BlockCache::forget_unused_namespaces() {
  // What a disk that comes late says of namespaces comes before its blocks.
  if (!disk_.unknown_directory().empty()) return;
  for (const NamespaceId& id : catalogue_.namespaces().forget_unused()) disk_.forget_namespace(id);
}

// Orphans whose size is not that of the records of the namespace they claim to be of.
void BlockCache::forget_misfits(std::span<const std::byte> encoded) {
  const auto known = catalogue_.namespaces().find(NamespaceId{xxh3_128(encoded)});
  if (!known || !catalogue_.namespaces()[*known].is_orphan()) return;
  const auto ns = decode_namespace(encoded);
  if (!ns) return;
  const auto& orphan = catalogue_.namespaces()[*known];
  if (RecordLayout::of(*ns).record_bytes == orphan.layout.record_bytes) return;
  counts_.faults += orphan.blocks;
  drop(*known, TierSet{}.with(Tier::device).with(Tier::host).with(Tier::disk), Removal::forgotten);
}

// Orphans in memory count for the default tenant, and lie in its extents and eviction orders: those
// that turn out to be another's go. Those on disk move to its orders.
void BlockCache::forget_others_orphans(std::span<const std::byte> encoded) {
  if (catalogue_.tenants().size() == 1) return;
  const auto known = catalogue_.namespaces().find(NamespaceId{xxh3_128(encoded)});
  if (!known || !catalogue_.namespaces()[*known].is_orphan()) return;
  const auto& bytes = catalogue_.namespaces()[*known].bytes;
  if (bytes[index_of(Tier::device)] + bytes[index_of(Tier::host)] == 0) return;
  const auto ns = decode_namespace(encoded);
  if (!ns || catalogue_.tenants().of_salt(ns->tenant) == kDefaultTenant) return;
  drop(*known, TierSet{}.with(Tier::device).with(Tier::host), Removal::forgotten);
}

// ---- commits

bool BlockCache::valid(const NewBlock& block, std::uint16_t ns) const {
  const KnownNamespace& known = catalogue_.namespaces()[ns];
  return !known.closed && block.tokens.size() == known.layout.block_tokens &&
         block.key == chain_key(known.id, block.parent, block.tokens) &&
         (block.block_index == 0) == block.parent.is_zero();
}

bool BlockCache::commit(SessionId session, std::uint16_t ns, const NewBlock& block) {
  BlockId id = catalogue_.find_any(block.key);
  const bool there_before = id != kNoBlock;
  bool good = valid(block, ns);
  if (id != kNoBlock && catalogue_.find(ns, block.key) != id) good = false;  // doomed, or not ours
  bool taken = false;
  bool to_host = false;
  bool second_writer = false;
  for (const SlotName name : block.slots) {
    Tier tier;
    if (!take_back(name, session, tier)) continue;
    const Taken slot =
        second_writer ? Taken::there_before : take_slot(name, tier, id, ns, block, good);
    if (slot != Taken::yes) {
      second_writer = slot == Taken::there_before;
      memory(tier, place_named(name)).give_back(place_named(name));
      continue;
    }
    KVTIER_POINT("daemon.commit.sealed");
    taken = true;
    to_host = to_host || tier == Tier::host;
  }
  if (to_host) disk_.committed(id, block.parent);
  if (good && there_before) seen_again(id);
  return taken;
}

// Puts the block into the slot; `id` is its entry, made if it is kNoBlock.
BlockCache::Taken BlockCache::take_slot(SlotName name, Tier tier, BlockId& id, std::uint16_t ns,
                                        const NewBlock& block, bool good) {
  const KnownNamespace& known = catalogue_.namespaces()[ns];
  const Place at = place_named(name);
  MemoryTier& into = memory(tier, at);
  // Of the right size, and taken for the same tenant: what it counts and who sees it follow from
  // that.
  const bool fits =
      into.extent(ExtentId(at.container))->shape().slot_bytes == known.layout.record_bytes &&
      into.tenant_of(at) == known.tenant;
  const auto record = into.slot(at);
  const BlockIdentity identity{known.id, block.key, block.parent, block.block_index};
  // What cannot be read here has been read where the block came from or went to as well; without
  // that it could not go to disk either.
  const bool proven =
      good && fits &&
      (record.empty() ? id != kNoBlock && !catalogue_.block(id).tiers.without(Tier::device).empty()
                      : verify_header(record, known.layout, identity, block.tokens).has_value());
  if (!proven) {
    ++counts_.refused_commits;
    return Taken::no;
  }
  if (id == kNoBlock) {
    if (catalogue_.size() == catalogue_.capacity() && !make_index_room(known.tenant))
      return Taken::no;
    id = catalogue_.add(ns, block.key, block.parent, block.block_index);
    // Never newer than its parent, so that the order restored from stamps has tails before heads.
    const BlockId parent = catalogue_.find(ns, block.parent);
    catalogue_.set_last_access(
        id, parent == kNoBlock ? ++clock_ : catalogue_.block(parent).last_access);
  } else if (catalogue_.block(id).tiers.has(tier)) {
    return Taken::there_before;
  }
  seal(id, into, at, block.parent);
  return Taken::yes;
}

void BlockCache::seal(BlockId id, MemoryTier& tier, Place at, const Key& parent) {
  const Block& block = catalogue_.block(id);
  remember(block.ns);
  storage::SlotEntry entry{};
  entry.block_index = block.block_index;
  entry.ns = catalogue_.namespaces()[block.ns].id;
  entry.key = block.key;
  entry.parent = parent;
  entry.last_access = block.last_access;
  tier.table(at).set_sealed(at.slot, entry);
  tier.set_block(at, id);
  catalogue_.place(id, tier.tier(), at, parent);
}

// ---- removal

void BlockCache::forget(std::uint16_t ns, const Key& key) {
  const BlockId id = catalogue_.find(ns, key);
  if (id == kNoBlock) return;
  ++counts_.faults;
  pins_.unpin_everywhere(id);
  catalogue_.doom(id);
  settle(id);
}

void BlockCache::remove_everywhere(BlockId id, Removal why) {
  const TierSet tiers = catalogue_.block(id).tiers;
  for (const Tier tier : kAllTiers) {
    if (!tiers.has(tier)) continue;
    if (tier == Tier::disk) {
      disk_.forget({&id, 1}, why);
    } else {
      remove_from(id, tier, why);
    }
  }
}

void BlockCache::remove_from(BlockId id, Tier tier, Removal why) {
  const Place at = catalogue_.unplace(id, tier, why);
  memory(tier, at).set_block(at, kNoBlock);
  memory(tier, at).give_back(at);
}

std::uint64_t BlockCache::drop(std::optional<std::uint16_t> ns, TierSet tiers, Removal why) {
  std::vector<BlockId> blocks;
  catalogue_.each([&](BlockId id) {
    const Block& block = catalogue_.block(id);
    if (!ns || block.ns == *ns) blocks.push_back(id);
    return true;
  });
  Removed removed;
  remove(blocks, tiers, false, removed, why);
  return removed.blocks;
}

}  // namespace kvtier::daemon
