// The model's disk tier, and the comparison of everything.
#include <algorithm>

#include "tests/daemon/cache_model.h"

namespace kvtier::daemon::testing {

using What = FakeStore::Asked::What;
using Fate = FakeStore::Fate;

void CacheModel::write_through(const Key& key) {
  MBlock& block = blocks_.at(key);
  if (block.writing || block.copies.contains(Tier::disk)) return;
  if (waiting_writes() >= write_queue_max_) {
    ++dropped_writes_;
    return;
  }
  hold(key, Tier::host);
  block.writing = true;
  queue_.push_back({key, next_ticket_++});
  pump();
}

void CacheModel::pump() {
  while (!queue_.empty() && writing_.size() < writes_submitted_max_) {
    if (!submit(queue_.front().key)) return;
    queue_.pop_front();
  }
}

// False: it waits on.
bool CacheModel::submit(const Key& key) {
  const std::uint64_t bytes = size_of(blocks_.at(key));
  Order& victims = orders_[{Tier::disk, bytes}];
  const bool asked = !transfers_.empty() && transfers_.front().what == What::write &&
                     transfers_.front().keys[0] == key;
  if (!asked) {
    const Block* now = cache_.find(key);
    if (one_size_ && (free_[2] > 0 || !victims.empty()))
      fault(name(key), " was not written though there is room");
    if (one_size_ ? !writing_.empty() : (now != nullptr && now->write_queued)) return false;
    ++dropped_writes_;
    let_go(key);
    return true;
  }
  const auto write = transfers_.front();
  transfers_.pop_front();
  if (one_size_ && write.replaces.has_value() != (free_[2] == 0))
    fault("a victim though there is room, or none");
  if (write.replaces) {
    if (victims.empty() || victims.back() != *write.replaces) {
      fault(name(*write.replaces), " replaced on disk, not the oldest there");
      return true;
    }
    unplace(*write.replaces, Tier::disk);
  } else {
    --free_[2];
  }
  if (write.accepted) {
    writing_[queue_.front().ticket] = {key, std::nullopt, write.replaces};
    return true;
  }
  ++dropped_writes_;
  let_go(key);
  if (write.replaces) {
    erase_on_disk({*write.replaces}, 1);
  } else {
    ++free_[2];
  }
  return true;
}

void CacheModel::settle_writes() {
  while (!writing_.empty() && writing_.begin()->second.fate) {
    const Writing done = writing_.begin()->second;
    writing_.erase(writing_.begin());
    const Block* now = cache_.find(done.key);
    if (*done.fate == Fate::good) {
      // Its place is the daemon's choice; a block that goes at once is not seen there any more.
      const Place at = now != nullptr && now->tiers.has(Tier::disk) ? now->places[2] : Place{};
      place(done.key, Tier::disk, at, blocks_.at(done.key).block.identity.parent);
    } else if (*done.fate == Fate::io || (done.replaces && on_or_to_disk(*done.replaces))) {
      ++retired_;
    } else if (done.replaces) {
      erase_on_disk({*done.replaces}, 1);
    } else {
      ++free_[2];
    }
    let_go(done.key);
  }
}

void CacheModel::let_go(const Key& key) {
  blocks_.at(key).writing = false;
  unhold(key, Tier::host, blocks_.at(key).block.identity.parent);
  settle(key);
}

void CacheModel::erase_on_disk(std::vector<Key> keys, std::uint32_t slots_back) {
  std::ranges::sort(keys);
  erases_expected_.push_back({std::move(keys), slots_back});
}

void CacheModel::completed(const FakeStore::Asked& operation, Fate fate) {
  begin();
  switch (operation.what) {
    case What::read:
      landed(operation.keys[0], fate);
      break;
    case What::write:
      for (auto& [ticket, writing] : writing_) {
        if (writing.key == operation.keys[0]) writing.fate = fate;
      }
      settle_writes();
      pump();
      break;
    case What::erase:
      free_[2] += erasing_.at(operation.operation);
      erasing_.erase(operation.operation);
      pump();
      break;
    case What::flush:
      break;
  }
  finish();
}

// Accounts for what else was asked of the store: removals, in any order.
void CacheModel::finish() {
  for (const FakeStore::Asked& asked : transfers_) {
    fault("an unexpected ", asked.what == What::read ? "read" : "write", " of ",
          name(asked.keys[0]));
  }
  for (FakeStore::Asked& asked : erases_) {
    std::ranges::sort(asked.keys);
    const auto expected = std::ranges::find(erases_expected_, asked.keys, &Erasing::keys);
    if (expected != erases_expected_.end()) {
      erasing_[asked.operation] = expected->slots_back;
      erases_expected_.erase(expected);
      continue;
    }
    // A segment of another size is emptied.
    if (one_size_) fault("an unexpected erase of ", name(asked.keys[0]));
    for (const Key& key : asked.keys) {
      if (!blocks_.contains(key) || !blocks_.at(key).copies.contains(Tier::disk)) {
        fault(name(key), " erased, which is not on disk");
        continue;
      }
      unplace(key, Tier::disk);
    }
    erasing_[asked.operation] = 0;
  }
  if (!erases_expected_.empty()) fault(erases_expected_.size(), " removals from disk are missing");
  transfers_.clear();
  erases_.clear();
  erases_expected_.clear();
  if (cache_.ready != ready_) fault("the events are not those expected");
  cache_.ready.clear();
  ready_.clear();
}

void CacheModel::check() {
  for (const Key& key : ever_) {
    const auto found = blocks_.find(key);
    const Block* now = cache_.find(key);
    TierSet tiers;
    if (found != blocks_.end()) {
      for (const auto& [tier, copy] : found->second.copies) tiers = tiers.with(tier);
    }
    if ((now == nullptr ? TierSet{} : now->tiers) != tiers) {
      fault(name(key), " in tiers ", now == nullptr ? 0 : int{now->tiers.bits}, ", expected ",
            int{tiers.bits});
      continue;
    }
    const bool seen = found != blocks_.end() && !found->second.doomed;
    if (cache_.directory().find(key) != (seen ? tiers : TierSet{}))
      fault(name(key), " in the directory");
    if (found != blocks_.end()) check_block(key, found->second);
  }
  if (cache_->catalogue().size() != blocks_.size()) fault("blocks the model does not know");
  check_slots(Tier::device);
  check_slots(Tier::host);
  check_orders();
  check_totals();
}

void CacheModel::check_block(const Key& key, const MBlock& block) {
  const Block& now = *cache_.find(key);
  for (const auto& [tier, copy] : block.copies) {
    const std::size_t t = index_of(tier);
    if (now.holds[t] != copy.holds) fault(name(key), " holds in ", kvtier::name(tier));
    if (!(now.places[t] == copy.at)) fault(name(key), " has moved in ", kvtier::name(tier));
    if (tier == Tier::disk) continue;
    const auto record = cache_.record(slot_name(copy.at));
    if (!record_is(record, cache_.known(block.ns).layout, block.block))
      fault(name(key), " bytes differ");
  }
  if (now.loading != block.loading || now.write_queued != block.writing ||
      now.doomed != block.doomed) {
    fault(name(key), " state");
  }
}

void CacheModel::check_slots(Tier tier) {
  std::map<SlotName, const Key*> sealed;
  for (const auto& [key, block] : blocks_) {
    const auto copy = block.copies.find(tier);
    if (copy == block.copies.end()) continue;
    if (!sealed.emplace(slot_name(copy->second.at), &key).second) fault("two blocks in a slot");
  }
  std::set<SlotName> loading;
  if (tier == Tier::host) {
    for (const auto& [key, load] : loads_) loading.insert(load.to);
  }
  std::uint64_t used = 0;
  cache_->memory(tier).each_extent([&](storage::Extent& extent) {
    for (std::uint32_t slot = 0; slot < extent.shape().slots(); ++slot) {
      const auto& entry = extent.table().entry(slot);
      const SlotName at = slot_name({extent.id().value, slot});
      const auto reserved = reservations_.find(at);
      auto expected = storage::SlotState::free;
      if (sealed.contains(at)) expected = storage::SlotState::sealed;
      if (loading.contains(at)) expected = storage::SlotState::reserved;
      if (reserved != reservations_.end()) {
        expected = reserved->second.session == 0 ? storage::SlotState::quarantined
                                                 : storage::SlotState::reserved;
      }
      if (sealed.contains(at) + loading.contains(at) + (reserved != reservations_.end()) > 1) {
        fault("a slot in two hands");
      }
      if (entry.state != expected) fault("slot state ", static_cast<int>(entry.state));
      if (sealed.contains(at) && entry.key != *sealed.at(at))
        fault("slot table names another block");
      if (entry.state != storage::SlotState::free) used += extent.shape().slot_bytes;
    }
  });
  const MemoryTier& memory = cache_->memory(tier);
  if (memory.used_bytes() != used) fault("used bytes of ", kvtier::name(tier));
  if (memory.reserved_bytes() > memory.cap_bytes()) fault(kvtier::name(tier), " past its cap");
}

void CacheModel::check_orders() {
  for (const auto& [where, keys] : orders_) {
    if (cache_.order(where.first, where.second) != keys) {
      fault("order of ", kvtier::name(where.first), ", records of ", where.second);
    }
  }
}

void CacheModel::check_totals() {
  if (cache_->disk().reserved_bytes() > cache_->disk().cap_bytes()) fault("disk past its cap");
  if (cache_->leases() != leases_.size()) fault("leases");
  if (cache_->disk().queued() != waiting_writes()) fault("writes waiting");
  if (cache_->disk().counts().dropped_writes != dropped_writes_) fault("dropped writes");
  std::uint64_t quarantined = 0;
  for (const auto& [slot, reserved] : reservations_) quarantined += reserved.session == 0 ? 1 : 0;
  if (cache_->reservations().quarantined() != quarantined) fault("quarantined slots");
  if (cache_->reservations().reserved() != reservations_.size() - quarantined)
    fault("reserved slots");
  for (const auto& [id, lease] : leases_) {
    for (const Leased& leased : lease.blocks) {
      if (!leased.block || leased.pending) continue;
      const Block* now = cache_.find(*leased.block);
      if (now == nullptr || slot_name(now->places[index_of(leased.tier)]) != leased.slot) {
        fault("lease ", id, ": ", name(*leased.block), " is not where the lease was told");
      }
    }
  }
}

}  // namespace kvtier::daemon::testing
