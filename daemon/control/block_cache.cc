#include "daemon/control/block_cache.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/base/check.h"
#include "client/base/points.h"
#include "client/record/digest.h"
#include "client/record/record.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

BlockCache::BlockCache(Options options, Ports ports)
    : options_(options),
      catalogue_(options.blocks_max, *ports.directory),
      device_(Tier::device, options.device, ports.device, [this] { return ExtentId(next_extent_++); }),
      host_(Tier::host, options.host, ports.host, [this] { return ExtentId(next_extent_++); }),
      disk_(options.disk, ports.disks, catalogue_, host_) {
  disk_.on_unheld = [this](BlockId id) { settle(id); };
}

Result<void> BlockCache::recover() {
  auto newest = disk_.recover();
  if (!newest) return newest.error();
  clock_ = *newest + 1;
  return {};
}

Result<std::uint16_t> BlockCache::open_namespace(std::span<const std::byte> encoded) {
  forget_misfits(encoded);
  auto ns = catalogue_.namespaces().open(encoded);
  if (ns && !std::exchange(catalogue_.namespaces()[*ns].remembered, true)) {
    disk_.remember_namespace(*ns);
  }
  return ns;
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
  drop(*known, TierSet{}.with(Tier::disk));
}

// ---- leases

BlockCache::Grant BlockCache::lease(SessionId session, std::uint16_t ns, std::span<const Key> keys) {
  SessionLeases& of_session = leases_of_[session];
  if (of_session.ids.size() >= limits::kLeasesPerSessionMax) return {};
  keys = keys.first(std::min(keys.size(), limits::kBlocksLeasedPerSessionMax - of_session.blocks));
  // First everything in memory is held, so that making room for what is on disk cannot evict it.
  std::vector<Leased> held;
  std::vector<BlockId> found(keys.size());
  found.resize(catalogue_.find_prefix(ns, keys, found));
  held.reserve(found.size());
  for (const BlockId id : found) {
    const auto leased = hold_in_memory(id);
    if (!leased) break;
    held.push_back(*leased);
  }
  const LeaseId lease_id = next_lease_;
  for (std::size_t i = 0; i < held.size(); ++i) {
    const Leased& leased = held[i];
    if (!leased.pending) continue;
    if (!catalogue_.block(leased.block).loading && !start_load(leased.block)) {
      const std::vector<Leased> rest(held.begin() + static_cast<std::ptrdiff_t>(i), held.end());
      held.resize(i);
      end_lease({session, rest});
      break;
    }
    loading_[leased.block.value].push_back({lease_id, static_cast<std::uint32_t>(i)});
  }
  Grant grant;
  if (held.empty()) return grant;
  grant.lease = next_lease_++;
  note_access(held, grant);
  of_session.ids.push_back(grant.lease);
  of_session.blocks += held.size();
  leases_.emplace(grant.lease, Lease{session, std::move(held)});
  if (options_.disk.admission != Admission::second_hit) return grant;
  for (const BlockId id : std::span(found).first(grant.slots.size())) seen_again(id);
  return grant;
}

std::optional<BlockCache::Leased> BlockCache::hold_in_memory(BlockId id) {
  const TierSet tiers = catalogue_.reachable(id);
  for (const Tier tier : {Tier::device, Tier::host}) {
    if (tiers.has(tier) && catalogue_.hold(id, tier)) return Leased{id, tier, false};
  }
  if (!tiers.has(Tier::disk)) return std::nullopt;
  return Leased{id, Tier::host, true};
}

void BlockCache::note_access(const std::vector<Leased>& held, Grant& grant) {
  ++clock_;
  std::vector<BlockId> prefix;
  prefix.reserve(held.size());
  grant.slots.reserve(held.size());
  grant.tiers.reserve(held.size());
  for (const Leased& leased : held) {
    prefix.push_back(leased.block);
    catalogue_.set_last_access(leased.block, clock_);
    const Block& block = catalogue_.block(leased.block);
    const Tier from = leased.pending ? Tier::disk : leased.tier;
    grant.slots.push_back(leased.pending ? 0 : slot_name(block.places[index_of(from)]));
    grant.tiers.push_back(from);
    ++counts_.hits[index_of(from)];
    for (const Tier tier : {Tier::device, Tier::host}) {
      if (!block.tiers.has(tier)) continue;
      const Place at = block.places[index_of(tier)];
      memory(tier).table(at).set_last_access(at.slot, clock_);
    }
    disk_.touched(leased.block);
  }
  catalogue_.touch(prefix);
}

void BlockCache::seen_again(BlockId id) {
  const Block& block = catalogue_.block(id);
  if (!block.tiers.has(Tier::host) || block.doomed) return;
  const Place at = block.places[index_of(Tier::host)];
  disk_.seen_again(id, host_.table(at).entry(at.slot).parent);
}

bool BlockCache::start_load(BlockId id) {
  if (loading_.size() >= limits::kReadsWaitingMax) return false;
  const auto to = room(host_, catalogue_.record_bytes(id));
  if (!to) return false;
  host_.table(*to).set_reserved(to->slot, static_cast<std::uint32_t>(::getpid()), 0);
  catalogue_.set_loading(id, true);
  const auto sent = disk_.read(id, *to, [this, id, to = *to](const Result<void>& result) {
    loaded(id, to, result);
  });
  if (!sent) {
    catalogue_.set_loading(id, false);
    host_.give_back(*to);
    return false;
  }
  KVTIER_POINT("daemon.load.started");
  return true;
}

void BlockCache::loaded(BlockId id, Place to, const Result<void>& result) {
  catalogue_.set_loading(id, false);
  std::vector<Waiter> waiters;
  if (const auto found = loading_.find(id.value); found != loading_.end()) {
    waiters = std::move(found->second);
    loading_.erase(found);
  }
  const bool good = result.has_value() && !catalogue_.doomed(id);
  if (good && !catalogue_.block(id).tiers.has(Tier::host)) {
    RecordHeader header;
    std::memcpy(&header, host_.slot(to).data(), sizeof header);
    seal(id, host_, to, header.parent);
  } else {
    host_.give_back(to);  // it failed, or a client has written the block meanwhile
  }
  const auto events = hand_over(id, waiters, good);
  KVTIER_POINT("daemon.load.landed");
  // What cannot be reached now may be good later; all else did not hold.
  if (!result && result.error().code != Errc::unavailable) {
    ++counts_.faults;
    disk_.retire(id);
  }
  settle(id);  // does nothing where retire() has removed the entry
  for (const Waiter& waiter : waiters) {
    const auto lease = leases_.find(waiter.lease);
    if (lease != leases_.end() && lease->second.session == 0) end_or_wait(waiter.lease, lease->second);
  }
  for (const Event& event : events) on_ready(event.session, event.lease, {&event.landed, 1});
}

std::vector<BlockCache::Event> BlockCache::hand_over(BlockId id, std::span<const Waiter> waiters,
                                                     bool good) {
  std::vector<Event> events;
  for (const Waiter& waiter : waiters) {
    const auto lease = leases_.find(waiter.lease);
    if (lease == leases_.end()) continue;
    Leased& leased = lease->second.blocks[waiter.block];
    leased.pending = false;
    if (!good || !catalogue_.hold(id, Tier::host)) leased.block = kNoBlock;
    const SlotName slot = leased.block == kNoBlock
                              ? 0
                              : slot_name(catalogue_.block(id).places[index_of(Tier::host)]);
    if (lease->second.session == 0) continue;
    events.push_back({lease->second.session, waiter.lease, {waiter.block, slot}});
  }
  return events;
}

bool BlockCache::release(SessionId session, LeaseId lease) {
  const auto found = leases_.find(lease);
  if (found == leases_.end() || found->second.session != session) {
    ++counts_.unknown_releases;
    return false;
  }
  SessionLeases& of_session = leases_of_.at(session);
  std::erase(of_session.ids, lease);
  of_session.blocks -= found->second.blocks.size();
  end_or_wait(lease, found->second);
  return true;
}

void BlockCache::release_all(SessionId session) {
  const auto of = leases_of_.find(session);
  if (of == leases_of_.end()) return;
  for (const LeaseId lease : of->second.ids) end_or_wait(lease, leases_.at(lease));
  leases_of_.erase(of);
}

// A lease whose reads are under way ends with the last of them, so that its blocks, which land in any order,
// take their places in the eviction order together.
void BlockCache::end_or_wait(LeaseId id, Lease& lease) {
  lease.session = 0;
  if (std::ranges::any_of(lease.blocks, &Leased::pending)) return;
  const Lease ended = std::move(lease);
  leases_.erase(id);
  end_lease(ended);
}

void BlockCache::end_lease(const Lease& lease) {
  std::vector<BlockId> prefix;
  prefix.reserve(lease.blocks.size());
  for (const Leased& leased : lease.blocks) {
    if (leased.block == kNoBlock) continue;
    prefix.push_back(leased.block);
    if (!leased.pending) catalogue_.unhold(leased.block, leased.tier);
  }
  catalogue_.touch(prefix);
  for (const BlockId id : prefix) settle(id);
}

// Removes a doomed block once its last hold has ended.
void BlockCache::settle(BlockId id) {
  const Block& block = catalogue_.block(id);
  if (block.doomed && !block.loading && Catalogue::unheld(block)) remove_everywhere(id);
}

// ---- room

std::optional<Place> BlockCache::room(MemoryTier& tier, std::uint64_t record_bytes) {
  if (auto free = tier.take(record_bytes)) return free;
  const BlockId victim = catalogue_.oldest(tier.tier(), record_bytes);
  if (victim != kNoBlock) {
    evict(tier, victim);
    return tier.take(record_bytes);
  }
  if (empty_an_extent_for(tier, record_bytes)) return tier.take(record_bytes);
  return std::nullopt;
}

void BlockCache::evict(MemoryTier& tier, BlockId id) {
  const Place at = catalogue_.unplace(id, tier.tier());
  tier.set_block(at, kNoBlock);
  tier.give_back(at);
  ++counts_.evictions[index_of(tier.tier())];
  KVTIER_POINT("daemon.memory.evicted");
}

// Records of one size have no room while others fill the tier: an extent of theirs that nobody uses is
// emptied and given back to the system, the one of the coldest block if possible.
bool BlockCache::empty_an_extent_for(MemoryTier& tier, std::uint64_t record_bytes) {
  const std::size_t t = index_of(tier.tier());
  const BlockId coldest = catalogue_.oldest_of_other_size(tier.tier(), record_bytes);
  const std::uint32_t preferred =
      coldest == kNoBlock ? 0 : catalogue_.block(coldest).places[t].container;
  const auto chosen = [&](bool any) -> storage::Extent* {
    storage::Extent* found = nullptr;
    tier.each_extent([&](storage::Extent& extent) {
      if (found != nullptr || extent.shape().slot_bytes == record_bytes) return;
      if (!any && extent.id().value != preferred) return;
      for (std::uint32_t slot = 0; slot < extent.shape().slots(); ++slot) {
        const auto state = extent.table().entry(slot).state;
        if (state == storage::SlotState::free) continue;
        if (state != storage::SlotState::sealed) return;
        const BlockId id = tier.block_at({extent.id().value, slot});
        if (catalogue_.block(id).holds[t] != 0) return;
      }
      found = &extent;
    });
    return found;
  };
  storage::Extent* extent = chosen(false);
  if (extent == nullptr) extent = chosen(true);
  if (extent == nullptr) return false;
  for (std::uint32_t slot = 0; slot < extent->shape().slots(); ++slot) {
    const BlockId id = tier.block_at({extent->id().value, slot});
    if (id != kNoBlock) evict(tier, id);
  }
  return tier.retire_extent(extent->id());
}

// The least recently used block that nobody holds anywhere leaves every tier.
bool BlockCache::make_index_room() {
  for (const Tier tier : {Tier::disk, Tier::host, Tier::device}) {
    const BlockId id = catalogue_.oldest(tier);
    if (id == kNoBlock || !Catalogue::unheld(catalogue_.block(id))) continue;
    for (const Tier memory_tier : {Tier::device, Tier::host}) {
      if (catalogue_.block(id).tiers.has(memory_tier)) ++counts_.evictions[index_of(memory_tier)];
    }
    remove_everywhere(id);
    return true;
  }
  return false;
}

// ---- reservations and commits

std::vector<SlotName> BlockCache::reserve(SessionId session, ProcessId process, std::uint16_t ns,
                                          Tier tier, std::uint32_t count) {
  std::vector<SlotName> slots;
  if (tier == Tier::disk) return slots;
  MemoryTier& memory_tier = memory(tier);
  const std::uint64_t bytes = catalogue_.namespaces()[ns].layout.record_bytes;
  // A quarter of the tier at most is on its way to be filled for one process.
  const std::uint64_t share = std::clamp<std::uint64_t>(memory_tier.slots_possible(bytes) / 4, 1,
                                                        limits::kReservedPerProcessMax);
  EvictionAhead ahead(catalogue_, tier, bytes);
  while (slots.size() < count && reservations_.held_by(process, tier) < share) {
    ahead.step();
    const auto at = room(memory_tier, bytes);
    if (!at) break;
    memory_tier.table(*at).set_reserved(at->slot, process.pid, process.start_time);
    reservations_.add(slot_name(*at), tier, session, process);
    slots.push_back(slot_name(*at));
  }
  return slots;
}

void BlockCache::abandon(SessionId session, SlotName slot) {
  Tier tier;
  if (reservations_.take(slot, session, tier)) memory(tier).give_back(place_named(slot));
}

bool BlockCache::valid(const NewBlock& block, std::uint16_t ns) const {
  const KnownNamespace& known = catalogue_.namespaces()[ns];
  return block.tokens.size() == known.layout.block_tokens &&
         block.key == chain_key(known.id, block.parent, block.tokens) &&
         (block.block_index == 0) == block.parent.is_zero();
}

bool BlockCache::commit(SessionId session, std::uint16_t ns, const NewBlock& block) {
  const KnownNamespace& known = catalogue_.namespaces()[ns];
  BlockId id = catalogue_.find_any(block.key);
  const bool there_before = id != kNoBlock;
  bool good = valid(block, ns);
  if (id != kNoBlock && catalogue_.find(ns, block.key) != id) good = false;  // doomed, or not ours
  bool taken = false;
  bool to_host = false;
  for (const SlotName name : block.slots) {
    Tier tier;
    if (!reservations_.take(name, session, tier)) continue;
    MemoryTier& into = memory(tier);
    const Place at = place_named(name);
    const bool fits = into.extent(ExtentId(at.container))->shape().slot_bytes == known.layout.record_bytes;
    const auto record = into.slot(at);
    const BlockIdentity identity{known.id, block.key, block.parent, block.block_index};
    const bool proven = good && fits &&
                        (record.empty() ||
                         verify_header(record, known.layout, identity, block.tokens).has_value());
    if (!proven) {
      ++counts_.refused_commits;
      into.give_back(at);
      continue;
    }
    if (id == kNoBlock) {
      if (catalogue_.size() == catalogue_.capacity() && !make_index_room()) {
        into.give_back(at);
        continue;
      }
      id = catalogue_.add(ns, block.key, block.block_index);
      // Never newer than its parent, so that the order restored from stamps has tails before heads.
      const BlockId parent = catalogue_.find(ns, block.parent);
      catalogue_.set_last_access(
          id, parent == kNoBlock ? ++clock_ : catalogue_.block(parent).last_access);
    } else if (catalogue_.block(id).tiers.has(tier)) {
      into.give_back(at);
      continue;
    }
    seal(id, into, at, block.parent);
    KVTIER_POINT("daemon.commit.sealed");
    taken = true;
    to_host = to_host || tier == Tier::host;
  }
  if (to_host) disk_.committed(id, block.parent);
  if (good && there_before) seen_again(id);
  return taken;
}

void BlockCache::seal(BlockId id, MemoryTier& tier, Place at, const Key& parent) {
  const Block& block = catalogue_.block(id);
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

void BlockCache::end_session(SessionId session) {
  release_all(session);
  for (const auto& slot : reservations_.end_session(session)) {
    const Place at = place_named(slot.slot);
    memory(slot.tier).table(at).set_quarantined(at.slot);
  }
}

void BlockCache::end_process(ProcessId process) {
  for (const auto& slot : reservations_.end_process(process)) {
    memory(slot.tier).give_back(place_named(slot.slot));
  }
}

// ---- removal

void BlockCache::forget(std::uint16_t ns, const Key& key) {
  const BlockId id = catalogue_.find(ns, key);
  if (id == kNoBlock) return;
  ++counts_.faults;
  catalogue_.doom(id);
  settle(id);
}

void BlockCache::remove_everywhere(BlockId id) {
  const TierSet tiers = catalogue_.block(id).tiers;
  for (const Tier tier : kAllTiers) {
    if (!tiers.has(tier)) continue;
    if (tier == Tier::disk) {
      disk_.forget({&id, 1});
      continue;
    }
    const Place at = catalogue_.unplace(id, tier);
    memory(tier).set_block(at, kNoBlock);
    memory(tier).give_back(at);
  }
}

std::uint64_t BlockCache::drop(std::optional<std::uint16_t> ns, TierSet tiers) {
  std::vector<BlockId> blocks;
  catalogue_.each([&](BlockId id) {
    const Block& block = catalogue_.block(id);
    if (!ns || block.ns == *ns) blocks.push_back(id);
    return true;
  });
  std::uint64_t dropped = 0;
  std::vector<BlockId> on_disk;
  for (const BlockId id : blocks) {
    const Block block = catalogue_.block(id);
    bool any = false;
    for (const Tier tier : kAllTiers) {
      if (!tiers.has(tier) || !block.tiers.has(tier) || block.holds[index_of(tier)] != 0) continue;
      any = true;
      if (tier == Tier::disk) {
        on_disk.push_back(id);
        continue;
      }
      const Place at = catalogue_.unplace(id, tier);
      memory(tier).set_block(at, kNoBlock);
      memory(tier).give_back(at);
    }
    dropped += any ? 1 : 0;
  }
  disk_.forget(on_disk);
  return dropped;
}

}  // namespace kvtier::daemon
