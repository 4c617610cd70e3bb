#include "tests/daemon/support/cache_model.h"

#include <algorithm>

namespace kvtier::daemon::testing {

using What = FakeStore::Asked::What;
using Fate = FakeStore::Fate;

// ---- blocks and orders

CacheModel::MBlock* CacheModel::find(std::uint16_t ns, const Key& key) {
  const auto found = blocks_.find(key);
  return found == blocks_.end() || found->second.ns != ns || found->second.doomed ? nullptr
                                                                                  : &found->second;
}

void CacheModel::enlist(const Key& key, Tier tier, const Key& parent) {
  Order& keys = order(key, tier);
  const MBlock* up = parent.is_zero() ? nullptr : find(blocks_.at(key).ns, parent);
  const auto behind = up == nullptr ? keys.end() : std::ranges::find(keys, parent);
  keys.insert(behind == keys.end() ? keys.begin() : behind + 1, key);
}

void CacheModel::place(const Key& key, Tier tier, Place at, const Key& parent) {
  if (!blocks_.at(key).copies.emplace(tier, Copy{at, 0}).second) fault(name(key), " placed twice");
  enlist(key, tier, parent);
}

void CacheModel::unplace(const Key& key, Tier tier) {
  MBlock& block = blocks_.at(key);
  if (block.copies.at(tier).holds != 0)
    fault(name(key), " taken from ", kvtier::name(tier), " under a hold");
  std::erase(order(key, tier), key);
  block.copies.erase(tier);
  if (tier == Tier::host) block.left_out = false;
  if (block.spoilt.has(tier)) {
    block.spoilt = block.spoilt.without(tier);
    block.doomed = !block.spoilt.empty();
  }
  if (block.copies.empty()) blocks_.erase(key);
}

void CacheModel::hold(const Key& key, Tier tier) {
  if (blocks_.at(key).copies.at(tier).holds++ == 0) std::erase(order(key, tier), key);
}

void CacheModel::unhold(const Key& key, Tier tier, const Key& parent) {
  if (--blocks_.at(key).copies.at(tier).holds == 0) enlist(key, tier, parent);
}

void CacheModel::touch(const std::vector<Key>& prefix) {
  for (auto key = prefix.rbegin(); key != prefix.rend(); ++key) {
    for (const auto& [tier, copy] : blocks_.at(*key).copies) {
      if (copy.holds != 0) continue;
      Order& keys = order(*key, tier);
      std::erase(keys, *key);
      keys.insert(keys.begin(), *key);
    }
  }
}

void CacheModel::settle(const Key& key) {
  const auto found = blocks_.find(key);
  if (found == blocks_.end() || !found->second.doomed) return;
  const auto copies = found->second.copies;
  if (const TierSet spoilt = found->second.spoilt; !spoilt.empty()) {
    for (const auto& [tier, copy] : copies) {
      if (!spoilt.has(tier) || copy.holds != 0) continue;
      unplace(key, tier);
      give_back(tier);
    }
    return;
  }
  if (found->second.loading) return;
  if (std::ranges::any_of(copies, [](const auto& copy) { return copy.second.holds != 0; })) return;
  for (const auto& [tier, copy] : copies) {
    unplace(key, tier);
    if (tier == Tier::disk) {
      erase_on_disk(device_of(copy.at), {key}, 1);
    } else {
      give_back(tier);
    }
  }
}

// ---- room

void CacheModel::begin() {
  take_asked();
  if (!one_size_) learn_evictions();
}

void CacheModel::take_asked() {
  for (auto& asked : cache_.store().take_asked()) {
    if (asked.what == What::erase) {
      erases_.push_back(std::move(asked));
    } else if (asked.what != What::flush && asked.what != What::scrub) {
      transfers_.push_back(std::move(asked));
    }
  }
}

// Memory only: the disk's show in what is asked of the store.
void CacheModel::learn_evictions() {
  std::vector<std::pair<Key, Tier>> gone;
  for (const auto& [key, block] : blocks_) {
    const Block* now = cache_.find(key);
    for (const auto& [tier, copy] : block.copies) {
      const bool there = now != nullptr && now->tiers.has(tier);
      if (tier != Tier::disk && copy.holds == 0 && !there) gone.emplace_back(key, tier);
    }
  }
  for (const auto& [key, tier] : gone) unplace(key, tier);
}

bool CacheModel::room(Tier tier, std::uint64_t bytes, bool granted) {
  if (!one_size_) return granted;
  if (free_[index_of(tier)] > 0) {
    --free_[index_of(tier)];
    return true;
  }
  const Order& keys = orders_[{tier, 0, bytes}];
  if (keys.empty()) return false;
  unplace(keys.back(), tier);
  return true;
}

// ---- leases

void CacheModel::lease(SessionId session, std::uint16_t ns, std::span<const TestBlock> prefix,
                       const BlockCache::Grant& grant) {
  begin();
  std::vector<Leased> held;
  for (const TestBlock& wanted : prefix) {
    const MBlock* block = find(ns, wanted.key());
    if (block == nullptr) break;
    if (block->copies.contains(Tier::device)) {
      hold_for(session, wanted.key(), Tier::device);
      held.push_back(
          {wanted.key(), Tier::device, false, slot_name(block->copies.at(Tier::device).at)});
    } else if (block->copies.contains(Tier::host)) {
      hold_for(session, wanted.key(), Tier::host);
      held.push_back({wanted.key(), Tier::host, false, slot_name(block->copies.at(Tier::host).at)});
    } else if (disks_[disk_of(*block)].online) {
      held.push_back({wanted.key(), Tier::host, true, 0});
    } else {
      break;
    }
  }
  for (std::uint32_t i = 0; i < held.size(); ++i) {
    if (!held[i].pending) continue;
    if (!loads_.contains(*held[i].block) && !start_load(*held[i].block)) {
      end_lease({session, {held.begin() + i, held.end()}, session});
      held.resize(i);
      break;
    }
    if (held[i].pending) loads_.at(*held[i].block).waiters.emplace_back(grant.lease, i);
  }
  if ((grant.lease == 0) != held.empty() || grant.slots.size() != held.size()) {
    fault("lease of ", held.size(), " blocks expected, ", grant.slots.size(), " granted");
    return;
  }
  std::vector<Key> keys;
  for (std::size_t i = 0; i < held.size(); ++i) {
    keys.push_back(*held[i].block);
    if (grant.slots[i] != held[i].slot) fault("lease block ", i, " in another slot");
    if (grant.tiers[i] != (held[i].pending ? Tier::disk : held[i].tier))
      fault("lease tier of block ", i);
  }
  touch(keys);
  if (!held.empty()) leases_[grant.lease] = {session, std::move(held), session};
  for (const Key& key : keys) seen_again(key);
  finish();
}

bool CacheModel::start_load(const Key& key) {
  const bool asked = !transfers_.empty() && transfers_.front().what == What::read &&
                     transfers_.front().keys[0] == key;
  if (!room(Tier::host, size_of(blocks_.at(key)), asked)) return false;
  if (!asked) {
    fault("no read of ", name(key), " was started");
    return false;
  }
  const auto read = transfers_.front();
  transfers_.pop_front();
  hold(key, Tier::disk);
  if (!read.accepted) {
    unhold(key, Tier::disk);
    give_back(Tier::host);
    return false;
  }
  blocks_.at(key).loading = true;
  loads_[key].to = slot_name({read.extent, read.slot});
  return true;
}

void CacheModel::landed(const Key& key, Fate fate) {
  const Load load = loads_.at(key);
  loads_.erase(key);
  MBlock& block = blocks_.at(key);
  block.loading = false;
  unhold(key, Tier::disk);
  const bool good = fate == Fate::good && !block.doomed;
  if (good && !block.copies.contains(Tier::host)) {
    place(key, Tier::host, place_named(load.to), block.block.identity.parent);
  } else {
    give_back(Tier::host);
  }
  for (const auto& [id, index] : load.waiters) {
    if (!leases_.contains(id)) continue;
    Leased& leased = leases_.at(id).blocks[index];
    leased.pending = false;
    if (good) {
      hold_for(leases_.at(id).owner, key, Tier::host);
      leased.slot = slot_name(block.copies.at(Tier::host).at);
    } else {
      leased.block.reset();
    }
    if (leases_.at(id).session == 0) continue;
    ready_.push_back({leases_.at(id).session, id, index, good ? leased.slot : 0});
  }
  if (fate != Fate::good && fate != Fate::unavailable) {
    const std::uint32_t disk = disk_of(block);
    unplace(key, Tier::disk);
    ++retired_;
    erase_on_disk(disk, {key}, 0);
  }
  settle(key);
  for (const auto& [id, index] : load.waiters) {
    if (leases_.contains(id) && leases_.at(id).session == 0) end_or_wait(id);
  }
}

void CacheModel::end_or_wait(LeaseId id) {
  Lease& lease = leases_.at(id);
  lease.session = 0;
  if (std::ranges::any_of(lease.blocks, &Leased::pending)) return;
  const Lease ended = lease;
  leases_.erase(id);
  end_lease(ended);
}

void CacheModel::end_lease(const Lease& lease) {
  std::vector<Key> prefix;
  for (const Leased& leased : lease.blocks) {
    if (!leased.block) continue;
    prefix.push_back(*leased.block);
    if (!leased.pending) unhold_for(lease.owner, *leased.block, leased.tier);
  }
  touch(prefix);
  for (const Key& key : prefix) settle(key);
}

void CacheModel::release(SessionId session, LeaseId id, bool taken) {
  begin();
  const bool known = leases_.contains(id) && leases_.at(id).session == session;
  if (known != taken) fault("release of lease ", id, " was ", taken ? "" : "not ", "taken");
  if (known) end_or_wait(id);
  finish();
}

// ---- reservations and commits

void CacheModel::reserve(SessionId session, ProcessId process, std::uint16_t ns, Tier tier,
                         std::uint32_t count, const std::vector<SlotName>& slots) {
  begin();
  const std::uint64_t bytes = cache_.known(ns).layout.record_bytes;
  // A quarter of what others leave it of the tier; or one slot, if it has none and that is more.
  const std::uint64_t cap = cache_->memory(tier).cap_bytes();
  std::uint64_t has = 0, others = 0;
  bool any_of_its_own = false;
  for (const auto& [slot, reserved] : reservations_) {
    if (reserved.tier != tier) continue;
    const std::uint64_t slot_bytes = cache_.known(reserved.ns).layout.record_bytes;
    (reserved.process == process ? has : others) += slot_bytes;
    any_of_its_own = any_of_its_own || (reserved.session == session && reserved.ns == ns);
  }
  const std::uint64_t pot = cap - std::min(cap, others), purse = pot / 4;
  std::uint64_t share = (purse - std::min(purse, has)) / bytes;
  if (share == 0 && !any_of_its_own && bytes > purse && (has == 0 || has + bytes <= pot / 2))
    share = 1;
  std::size_t expected = 0;
  while (expected < count && expected < share && room(tier, bytes, expected < slots.size()))
    ++expected;
  if (slots.size() != expected) fault(slots.size(), " slots reserved, ", expected, " expected");
  for (const SlotName slot : slots) {
    if (!reservations_.emplace(slot, Reserved{session, process, ns, tier}).second)
      fault("slot in two hands");
  }
  finish();
}

void CacheModel::commit(SessionId session, std::uint16_t ns, const TestBlock& block,
                        std::span<const SlotName> slots, std::span<const bool> filled, bool sound,
                        bool taken) {
  begin();
  if (sound) ever_.insert(block.key());  // the directory need not tell others from it
  const bool there_before = find(ns, block.key()) != nullptr;
  const bool other = blocks_.contains(block.key()) && find(ns, block.key()) == nullptr;
  bool expected = false, to_host = false, second_writer = false;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto found = reservations_.find(slots[i]);
    if (found == reservations_.end() || found->second.session != session) continue;
    const Reserved reserved = found->second;
    reservations_.erase(found);
    const bool fits =
        cache_.known(reserved.ns).layout.record_bytes == cache_.known(ns).layout.record_bytes;
    const MBlock* there = find(ns, block.key());
    const bool proven = sound && !other && fits && filled[i];
    if (proven && there != nullptr && there->copies.contains(reserved.tier)) second_writer = true;
    if (!proven || second_writer) {
      give_back(reserved.tier);
      continue;
    }
    if (there == nullptr) blocks_[block.key()] = {block, ns, {}, false, false, false, {}, false};
    place(block.key(), reserved.tier, place_named(slots[i]), block.identity.parent);
    expected = true;
    to_host = to_host || reserved.tier == Tier::host;
  }
  if (expected != taken)
    fault("commit of ", name(block.key()), taken ? " was taken" : " was refused");
  if (to_host && !second_hit_) write_through(block.key());
  if (sound && !other && there_before) seen_again(block.key());
  finish();
}

void CacheModel::abandon(SessionId session, SlotName slot) {
  begin();
  const auto found = reservations_.find(slot);
  if (found != reservations_.end() && found->second.session == session) {
    give_back(found->second.tier);
    reservations_.erase(found);
  }
  finish();
}

void CacheModel::end_session(SessionId session) {
  begin();
  std::vector<LeaseId> ending;  // in the order of their grants
  for (const auto& [id, lease] : leases_) {
    if (lease.session == session) ending.push_back(id);
  }
  for (const LeaseId id : ending) end_or_wait(id);
  for (auto& [slot, reserved] : reservations_) {
    if (reserved.session == session) reserved.session = 0;
  }
  finish();
}

void CacheModel::end_process(ProcessId process) {
  begin();
  std::erase_if(reservations_, [&](const auto& slot) {
    const bool ends = slot.second.session == 0 && slot.second.process == process;
    if (ends) give_back(slot.second.tier);
    return ends;
  });
  finish();
}

// ---- removal

// What is held of it goes with its last hold.
void CacheModel::remove(std::uint16_t ns, const Key& key) {
  begin();
  if (MBlock* block = find(ns, key); block != nullptr) {
    block->doomed = true;
    std::vector<std::vector<Key>> on_disk(disks_.size());
    drop_copies(key, TierSet{7}, on_disk);
    erase_on_disks(std::move(on_disk));
  }
  finish();
}

// Those that nobody holds. Whether there were any.
bool CacheModel::drop_copies(const Key& key, TierSet tiers,
                             std::vector<std::vector<Key>>& on_disk) {
  bool any = false;
  const auto copies = blocks_.at(key).copies;
  for (const auto& [tier, copy] : copies) {
    if (!tiers.has(tier) || copy.holds != 0) continue;
    any = true;
    unplace(key, tier);
    if (tier == Tier::disk) {
      on_disk[device_of(copy.at)].push_back(key);
    } else {
      give_back(tier);
    }
  }
  return any;
}

void CacheModel::spoil(const Key& key, Tier tier, bool believed) {
  begin();
  if (!believed) fault("a report of ", name(key), " was not believed");
  MBlock& block = blocks_.at(key);
  block.doomed = true;
  block.spoilt = block.spoilt.with(tier);
  settle(key);
  finish();
}

void CacheModel::drop(std::optional<std::uint16_t> ns, TierSet tiers, std::uint64_t dropped) {
  take_asked();  // nothing is evicted, so there is nothing to learn
  std::uint64_t expected = 0;
  std::vector<std::vector<Key>> on_disk(disks_.size());
  const auto blocks = blocks_;
  for (const auto& [key, block] : blocks) {
    if (ns && block.ns != *ns) continue;
    expected += drop_copies(key, tiers, on_disk) ? 1 : 0;
  }
  if (expected != dropped) fault(dropped, " blocks dropped, ", expected, " expected");
  erase_on_disks(std::move(on_disk));
  finish();
}

void CacheModel::erase_on_disks(std::vector<std::vector<Key>> keys) {
  for (std::uint32_t disk = 0; disk < disks_.size(); ++disk) {
    const auto slots = static_cast<std::uint32_t>(keys[disk].size());
    if (slots != 0) erase_on_disk(disk, std::move(keys[disk]), slots);
  }
}

}  // namespace kvtier::daemon::testing
