// The model's disk tier, and the comparison of everything.
#include <algorithm>

#include "tests/daemon/support/cache_model.h"

namespace kvtier::daemon::testing {

using What = FakeStore::Asked::What;
using Fate = FakeStore::Fate;

TierSet CacheModel::reachable(const MBlock& block) const {
  TierSet tiers;
  for (const auto& [tier, copy] : block.copies) {
    if (tier != Tier::disk || disks_[device_of(copy.at)].online) tiers = tiers.with(tier);
  }
  return tiers;
}

void CacheModel::health(std::uint32_t disk, bool online) {
  begin();
  disks_[disk].online = online;
  if (online) disks_[disk].free += std::exchange(disks_[disk].free_when_online, 0);
  pump();
  finish();
}

void CacheModel::seen_again(const Key& key) {
  const MBlock& block = blocks_.at(key);
  if (block.copies.contains(Tier::host) && (second_hit_ || block.left_out)) write_through(key);
}

void CacheModel::write_through(const Key& key) {
  const MBlock& block = blocks_.at(key);
  if (block.writing || block.copies.contains(Tier::disk)) return;
  const std::vector<Key> going = what_goes_with(key);
  if (going.empty()) return leave_out(key);
  for (auto next = going.rbegin(); next != going.rend(); ++next) {
    hold(*next, Tier::host);
    blocks_.at(*next).writing = true;
    blocks_.at(*next).left_out = false;
    queue_.push_back({*next, next_ticket_++});
  }
  pump();
}

// The block first, then those before it; nothing where it cannot go.
std::vector<Key> CacheModel::what_goes_with(const Key& key) const {
  if (!any_online()) return {};
  std::vector<Key> going;
  for (Key at = key;;) {
    going.push_back(at);
    const MBlock& block = blocks_.at(at);
    const Key parent = block.block.identity.parent;
    const auto found = blocks_.find(parent);
    const MBlock* up =
        found == blocks_.end() || found->second.ns != block.ns || found->second.doomed
            ? nullptr
            : &found->second;
    const bool follows = up != nullptr && up->writing;
    if (!fits_the_queue(going.size(), going.size() * size_of(key), follows && going.size() == 1))
      return {};
    if (parent.is_zero() || follows) return going;
    if (up == nullptr) return {};
    if (up->copies.contains(Tier::disk)) return going;
    if (!up->copies.contains(Tier::host)) return {};
    at = parent;
  }
}

bool CacheModel::fits_the_queue(std::size_t blocks, std::uint64_t bytes, bool follows) const {
  if (waiting_writes() == 0 && blocks == 1) return true;
  const bool half_empty =
      waiting_writes() * 2 < write_queue_max_ && waiting_bytes() * 2 < write_queue_bytes_max_;
  return (follows || half_empty) && waiting_writes() + blocks <= write_queue_max_ &&
         waiting_bytes() + bytes <= write_queue_bytes_max_;
}

std::uint64_t CacheModel::waiting_bytes() const {
  std::uint64_t bytes = 0;
  for (const Waiting& waiting : queue_) bytes += size_of(waiting.key);
  for (const auto& [ticket, writing] : writing_) bytes += size_of(writing.what.key);
  return bytes;
}

bool CacheModel::is_behind_its_parent(const Key& key) const {
  const Key& parent = blocks_.at(key).block.identity.parent;
  if (parent.is_zero()) return true;
  const auto up = blocks_.find(parent);
  return up != blocks_.end() && (up->second.copies.contains(Tier::disk) || up->second.writing);
}

void CacheModel::leave_out(const Key& key) {
  MBlock& block = blocks_.at(key);
  if (!block.left_out) ++dropped_writes_;
  block.left_out = true;
}

void CacheModel::pump() {
  while (!queue_.empty() && writing_.size() < writes_submitted_max_) {
    const Waiting next = queue_.front();
    if (!submit(next)) return;
    queue_.pop_front();
  }
}

// The oldest, but for the last block on disk before the one for which it goes; none where the next
// is the one before that.
std::optional<Key> CacheModel::victim_in(const Order& order, const Key& comes) const {
  Key keep = blocks_.at(comes).block.identity.parent;
  for (auto up = blocks_.find(keep); up != blocks_.end() && !up->second.copies.contains(Tier::disk);
       up = blocks_.find(keep))
    keep = up->second.block.identity.parent;
  if (order.empty()) return std::nullopt;
  if (order.back() != keep) return order.back();
  if (order.size() == 1 || order[order.size() - 2] == blocks_.at(keep).block.identity.parent)
    return std::nullopt;
  return order[order.size() - 2];
}

// False: it waits on.
bool CacheModel::submit(const Waiting& next) {
  const Key& key = next.key;
  if (!is_behind_its_parent(key)) {
    leave_out(key);
    let_go(key);
    return true;
  }
  const std::uint64_t bytes = size_of(blocks_.at(key));
  const bool free =
      std::ranges::any_of(disks_, [](const Disk& d) { return d.online && d.free > 0; });
  const bool asked = !transfers_.empty() && transfers_.front().what == What::write &&
                     transfers_.front().keys[0] == key;
  if (!asked) {
    const Block* now = cache_.find(key);
    bool room = free;
    for (std::uint32_t d = 0; d < disks_.size(); ++d)
      room = room || (disks_[d].online && victim_in(orders_[{Tier::disk, d, bytes}], key));
    if (one_size_ && room) fault(name(key), " was not written though there is room");
    if (any_online() && (one_size_ ? !writing_.empty() : (now != nullptr && now->write_queued)))
      return false;
    leave_out(key);
    let_go(key);
    return true;
  }
  const auto write = transfers_.front();
  transfers_.pop_front();
  Disk& disk = disks_[write.device];
  Order& victims = orders_[{Tier::disk, write.device, bytes}];
  if (!disk.online) fault(name(key), " written to a disk that is offline");
  if (one_size_ && write.replaces.has_value() == free)
    fault("a victim though there is room, or none");
  if (write.replaces) {
    if (victim_in(victims, key) != write.replaces) {
      fault(name(*write.replaces), " replaced on disk, not the oldest there");
      return true;
    }
    unplace(*write.replaces, Tier::disk);
  } else if (--disk.free < 0 && one_size_) {
    fault("a disk with more records than slots");
  }
  if (write.accepted) {
    writing_[next.ticket] = {next, write.device, std::nullopt, write.replaces};
    return true;
  }
  leave_out(key);
  let_go(key);
  if (write.replaces) {
    erase_on_disk(write.device, {*write.replaces}, 1);
  } else {
    ++disk.free;
  }
  return true;
}

void CacheModel::settle_writes() {
  while (!writing_.empty() && writing_.begin()->second.fate) {
    const Writing done = writing_.begin()->second;
    writing_.erase(writing_.begin());
    const Key& key = done.what.key;
    if (*done.fate != Fate::good) {
      not_written(done);
      continue;
    }
    if (!is_behind_its_parent(key)) {
      free_slot_of(done, true);
      leave_out(key);
      let_go(key);
      continue;
    }
    // Its place is the daemon's choice; a block that goes at once is not seen there any more.
    const Block* now = cache_.find(key);
    Place at = disk_place(done.disk, {(1U << limits::kDiskSegmentBits) - 1, 0});
    if (now != nullptr && now->tiers.has(Tier::disk)) at = now->places[2];
    if (device_of(at) != done.disk) fault(name(key), " on another disk than it was written to");
    place(key, Tier::disk, at, blocks_.at(key).block.identity.parent);
    let_go(key);
  }
}

void CacheModel::not_written(const Writing& done) {
  const Key& key = done.what.key;
  if (*done.fate == Fate::unavailable) {
    free_slot_of(done, true);
    if (any_online() && done.what.attempts + 1 < disks_.size())
      return put_back({key, done.what.ticket, done.what.attempts + 1, done.what.failed});
    leave_out(key);
    return let_go(key);
  }
  if (*done.fate == Fate::io) {
    ++retired_;
    if (!done.what.failed) return put_back({key, done.what.ticket, done.what.attempts, true});
  } else {
    free_slot_of(done, false);
  }
  blocks_.at(key).left_out = true;
  let_go(key);
}

void CacheModel::put_back(const Waiting& what) {
  queue_.insert(std::ranges::upper_bound(queue_, what.ticket, {}, &Waiting::ticket), what);
}

// At once, or once what may be indexed there is so no more.
void CacheModel::free_slot_of(const Writing& done, bool perhaps_written) {
  const bool anew = done.replaces && on_or_to_disk(done.disk, *done.replaces);
  std::vector<Key> erased;
  if (done.replaces && !anew) erased.push_back(*done.replaces);
  if (perhaps_written) erased.push_back(done.what.key);
  retired_ += anew ? 1 : 0;
  if (!erased.empty()) return erase_on_disk(done.disk, erased, anew ? 0 : 1);
  if (!anew) ++disks_[done.disk].free;
}

void CacheModel::let_go(const Key& key) {
  blocks_.at(key).writing = false;
  unhold(key, Tier::host, blocks_.at(key).block.identity.parent);
  settle(key);
}

void CacheModel::erase_on_disk(std::uint32_t disk, std::vector<Key> keys,
                               std::uint32_t slots_back) {
  std::ranges::sort(keys);
  erases_expected_.push_back({disk, std::move(keys), slots_back});
}

void CacheModel::completed(const FakeStore::Asked& operation, Fate fate) {
  begin();
  switch (operation.what) {
    case What::read:
      landed(operation.keys[0], fate);
      break;
    case What::write:
      for (auto& [ticket, writing] : writing_) {
        if (writing.what.key == operation.keys[0]) writing.fate = fate;
      }
      settle_writes();
      pump();
      break;
    case What::erase:
      (fate == Fate::unavailable ? disks_[operation.device].free_when_online
                                 : disks_[operation.device].free) +=
          erasing_.at(operation.operation);
      erasing_.erase(operation.operation);
      pump();
      break;
    case What::scrub:
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
    const auto expected = std::ranges::find_if(erases_expected_, [&](const Erasing& e) {
      return e.disk == asked.device && e.keys == asked.keys;
    });
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
    if (cache_.directory().find(key) != (seen ? reachable(found->second) : TierSet{}))
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
    if (tier == Tier::disk || block.spoilt.has(tier)) continue;
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
  if (memory.taken_bytes() > memory.cap_bytes()) fault(kvtier::name(tier), " past its cap");
}

void CacheModel::check_orders() {
  for (const auto& [where, keys] : orders_) {
    const auto& [tier, disk, bytes] = where;
    if (cache_.order(tier, bytes, disk) != keys) {
      fault("order of ", kvtier::name(tier), " ", disk, ", records of ", bytes);
    }
  }
}

void CacheModel::check_totals() {
  if (cache_->disk().taken_bytes() > cache_->disk().cap_bytes()) fault("disk past its cap");
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
