// Write-through: who is admitted, which device and slot a record gets, and what becomes of a write
// that fails.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "core/base/points.h"
#include "daemon/cache/tiers/disk_tier.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

using storage::DiskLocation;

void DiskTier::committed(BlockId id, const Key& parent) {
  if (options_.admission == Admission::all) write_through(id, parent);
}

void DiskTier::seen_again(BlockId id, const Key& parent) {
  if (options_.admission == Admission::second_hit) write_through(id, parent);
}

void DiskTier::owed(BlockId id, const Key& parent) {
  note_owed(id, false);
  if (options_.admission != Admission::none) write_through(id, parent);
}

// In the slot table, so that a daemon after this one knows.
void DiskTier::note_owed(BlockId id, bool owed) noexcept {
  const Place at = catalogue_.block(id).places[index_of(Tier::host)];
  host_.table(at).set_flags(at.slot, owed ? storage::kDiskOwed : 0);
}

void DiskTier::write_through(BlockId id, const Key& parent) {
  if (!present()) return;
  const Block& block = catalogue_.block(id);
  if (block.write_queued || block.tiers.has(Tier::disk)) return;
  const std::uint64_t bytes = catalogue_.record_bytes(id);
  // One block may always wait, however small the bound.
  const bool room = queued() < options_.write_queue_max &&
                    (queued() == 0 || queued_bytes_ + bytes <= options_.write_queue_bytes_max);
  if (!room) return drop_write(Drop::queue_full);
  if (!any_online()) return drop_write(Drop::offline);
  if (!catalogue_.hold(id, Tier::host)) return drop_write(Drop::readers);
  queued_bytes_ += bytes;
  catalogue_.set_write_queued(id, true);
  note_owed(id, true);
  queue_.push_back({id, parent, next_ticket_++});
  KVTIER_POINT("daemon.write.queued");
  pump();
}

void DiskTier::pump() {
  if (std::exchange(pumping_, true)) return;  // a completion that ran inside submit()
  while (!queue_.empty() && writing_.size() < options_.writes_submitted_max) {
    const Waiting next = queue_.front();
    if (!submit(next)) break;
    queue_.pop_front();
  }
  pumping_ = false;
  settle_flushes();
}

// False: not now; a completion will pump again. `next` is the head of the queue.
bool DiskTier::submit(const Waiting& next) {
  const std::uint64_t bytes = catalogue_.record_bytes(next.block);
  const TenantId tenant = catalogue_.tenant(next.block);
  const auto room = room_for(tenant, bytes);
  if (!room) {
    // One tenant that cannot make room below its quota keeps nobody waiting.
    if (over_quota(tenant, bytes)) {
      give_up(next, Drop::quota);
      return true;
    }
    if (any_online() && (emptying_ || empty_a_segment_for(tenant, bytes))) return false;
    if (any_online() && !writing_.empty()) return false;
    give_up(next, any_online() ? Drop::no_room : Drop::offline);
    return true;
  }
  usage_.add(tenant, bytes);
  Writing writing{next, *room, std::nullopt, device(room->device).began()};
  writing_.emplace(next.ticket, std::move(writing));
  if (const auto sent = send(next, *room); !sent) {
    writing_.erase(next.ticket);
    device(room->device).ended();
    usage_.subtract(tenant, bytes);
    // The store's own word that it is offline is on its way.
    const bool offline = sent.error().code == Errc::unavailable;
    if (offline) health_changed(room->device, false, sent.error().message);
    if (!offline || !move_elsewhere(next))
      give_up(next, offline ? Drop::offline : Drop::queue_full);
    give_back(next, *room, false);
  }
  return true;
}

Result<void> DiskTier::send(const Waiting& next, const Room& room) {
  const Block& block = catalogue_.block(next.block);
  const Place from = block.places[index_of(Tier::host)];
  storage::RecordStore::Write write;
  write.identity = {catalogue_.namespaces()[block.ns].id, block.key, next.parent,
                    block.block_index};
  write.last_access = block.last_access;
  write.to = room.at;
  write.slot_bytes = write.record_bytes = catalogue_.record_bytes(next.block);
  write.extent = ExtentId(from.container);
  write.slot = from.slot;
  write.replaces = room.replaces;
  auto sent = device(room.device)
                  .store()
                  .write(write, [this, ticket = next.ticket](const Result<void>& result) {
                    written(ticket, result);
                  });
  KVTIER_POINT("daemon.write.submitted");
  return sent;
}

// A free slot; or else the slot of the coldest block of this size that may go for the tenant's
// sake, on whichever device it is. A tenant at its quota gets a slot of its own.
std::optional<DiskTier::Room> DiskTier::room_for(TenantId tenant, std::uint64_t record_bytes) {
  enum class Whose { own, others, all };
  const auto coldest = [&](Whose whose) {
    BlockId victim = kNoBlock;
    for (std::uint32_t number = 0; number < devices_.size(); ++number) {
      const BlockId found =
          catalogue_.coldest(Tier::disk, record_bytes, number, [&](const Catalogue::Order& order) {
            const bool own = order.tenant == tenant;
            return is_online(order) && (whose == Whose::all || own == (whose == Whose::own)) &&
                   catalogue_.tenants().may_take(tenant, order.tenant, Tier::disk,
                                                 usage_.of(order.tenant), record_bytes);
          });
      if (found == kNoBlock) continue;
      if (victim == kNoBlock ||
          catalogue_.block(found).last_access < catalogue_.block(victim).last_access) {
        victim = found;
      }
    }
    return victim;
  };
  if (over_quota(tenant, record_bytes)) {
    const BlockId own = coldest(Whose::own);
    if (own != kNoBlock && !over_quota(tenant, 0)) return take_over(own);
    if (!evict_own(tenant, record_bytes)) return std::nullopt;
  }
  if (auto free = free_room(record_bytes)) return free;
  // What is guaranteed and not there yet comes from others, if they have it to give.
  const bool owed = usage_.of(tenant) + record_bytes <=
                    catalogue_.tenants().limits(tenant, Tier::disk).guaranteed;
  BlockId victim = coldest(owed ? Whose::others : Whose::all);
  if (victim == kNoBlock && owed) victim = coldest(Whose::own);
  if (victim == kNoBlock) return std::nullopt;
  return take_over(victim);
}

bool DiskTier::over_quota(TenantId tenant, std::uint64_t more_bytes) const noexcept {
  const std::uint64_t quota = catalogue_.tenants().limits(tenant, Tier::disk).quota;
  return quota < cap_bytes() && usage_.of(tenant) + more_bytes > quota;
}

// Makes room below the tenant's quota among its blocks of whatever size. Their slots are free once
// the index has forgotten them.
bool DiskTier::evict_own(TenantId tenant, std::uint64_t record_bytes) {
  for (std::uint32_t evicted = 0; over_quota(tenant, record_bytes); ++evicted) {
    const BlockId id = catalogue_.coldest(Tier::disk, [&](const Catalogue::Order& order) {
      return order.tenant == tenant && is_online(order);
    });
    if (id == kNoBlock || evicted == limits::kEvictionsForRoomMax) return false;
    forget({&id, 1}, Removal::quota);
  }
  return true;
}

// The victim's slot; its entry on disk goes with the write that replaces it.
DiskTier::Room DiskTier::take_over(BlockId victim) {
  const Key key = catalogue_.block(victim).key;
  const Place at = unplace(victim, Removal::capacity);
  KVTIER_POINT("daemon.disk.evicted");
  return Room{device_of(at), location_of(at), key};
}

// From the online device with the smallest part of its capacity in use that has one.
std::optional<DiskTier::Room> DiskTier::free_room(std::uint64_t record_bytes) {
  std::uint32_t tried = ~online_;
  while (true) {
    std::uint32_t best = limits::kDisksMax;
    for (std::uint32_t number = 0; number < devices_.size(); ++number) {
      // Of equal capacity all, so the bytes in use compare as the shares do.
      if ((tried >> number & 1) == 0 &&
          (best == limits::kDisksMax ||
           device(number).space().bytes_in_use() < device(best).space().bytes_in_use())) {
        best = number;
      }
    }
    if (best == limits::kDisksMax) return std::nullopt;
    if (const auto at = device(best).space().allocate(record_bytes)) return Room{best, *at, {}};
    tried |= 1U << best;
  }
}

// Whether what may go of a segment may go for the sake of `tenant`: nobody is left with less than
// is guaranteed.
bool DiskTier::may_empty(std::span<const BlockId> segment, TenantId tenant) const {
  if (catalogue_.tenants().size() == 1) return true;
  TenantUsage there;
  for (const BlockId id : segment) {
    if (id != kNoBlock && catalogue_.block(id).holds[index_of(Tier::disk)] == 0)
      there.add(catalogue_.tenant(id), catalogue_.record_bytes(id));
  }
  for (TenantId of = 0; of < catalogue_.tenants().size(); ++of) {
    if (there.of(of) != 0 &&
        !catalogue_.tenants().may_take(tenant, of, Tier::disk, usage_.of(of), there.of(of))) {
      return false;
    }
  }
  return true;
}

// Records of one size have no room while others fill the disk: the segment of the coldest of those
// is emptied, as far as nobody reads from it. A tenant at its quota has no room without.
bool DiskTier::empty_a_segment_for(TenantId tenant, std::uint64_t record_bytes) {
  if (over_quota(tenant, record_bytes)) return false;
  const auto others = catalogue_.ends(Tier::disk, [&](const Catalogue::Order& order) {
    return order.record_bytes != record_bytes && is_online(order);
  });
  const auto segment_of = [&](BlockId id) -> const std::vector<BlockId>& {
    return device_of_block(id).blocks_in(location_of(place_of(id)).segment);
  };
  const auto chosen =
      std::ranges::find_if(others, [&](BlockId id) { return may_empty(segment_of(id), tenant); });
  if (chosen == others.end()) return false;
  emptying_ = true;
  const Place at = place_of(*chosen);
  empty_segment(device_of(at), location_of(at).segment, 0);
  return true;
}

// From this slot on, in steps: it may have tens of thousands. What comes to be read meanwhile
// stays.
void DiskTier::empty_segment(std::uint32_t number, std::uint32_t segment, std::uint32_t slot) {
  DiskDevice& on = device(number);
  if (!on.online()) {
    emptying_ = false;
    return pump();
  }
  std::vector<Key> keys;
  std::vector<DiskLocation> slots;
  const std::vector<BlockId>& there = on.blocks_in(segment);
  const auto all = static_cast<std::uint32_t>(there.size());
  const std::uint32_t end = later ? std::min(all, slot + limits::kShrinkStep) : all;
  for (; slot < end; ++slot) {
    const BlockId id = there[slot];
    if (id == kNoBlock || catalogue_.block(id).holds[index_of(Tier::disk)] != 0) continue;
    keys.push_back(catalogue_.block(id).key);
    slots.push_back(location_of(unplace(id, Removal::other_size)));
  }
  if (end < all) {
    on.erase(std::move(keys), std::move(slots));
    return later([this, number, segment, end] { empty_segment(number, segment, end); });
  }
  on.erase(std::move(keys), std::move(slots), [this] {
    KVTIER_POINT("daemon.segment.emptied");
    emptying_ = false;
    pump();
  });
}

// Whether the device has, or is about to get, the block of this key.
bool DiskTier::on_or_to(std::uint32_t number, const Key& key) const noexcept {
  const BlockId id = catalogue_.find_any(key);
  if (id == kNoBlock) return false;
  if (catalogue_.block(id).tiers.has(Tier::disk)) return device_of(place_of(id)) == number;
  return std::ranges::any_of(writing_, [&](const auto& writing) {
    return writing.second.what.block == id && writing.second.room.device == number;
  });
}

// The victim, if any, is out of the catalogue already; its entry on disk goes before the slot is
// used again, and so does the entry of the block itself if it may be there.
void DiskTier::give_back(const Waiting& what, const Room& room, bool perhaps_written) {
  DiskDevice& on = device(room.device);
  std::vector<Key> keys;
  std::vector<DiskLocation> slots{room.at};
  if (room.replaces && on_or_to(room.device, *room.replaces)) {
    // Written anew there meanwhile: the entry to erase may by now be of that write.
    on.space().retire(room.at);
    slots.clear();
  } else if (room.replaces) {
    keys.push_back(*room.replaces);
  }
  if (perhaps_written) keys.push_back(catalogue_.block(what.block).key);
  if (!keys.empty()) return on.erase(std::move(keys), std::move(slots), [this] { pump(); });
  if (!slots.empty()) on.space().free(room.at);
}

void DiskTier::written(std::uint64_t ticket, const Result<void>& result) {
  Writing& writing = writing_.at(ticket);
  writing.result = result;
  DiskDevice& on = device(writing.room.device);
  on.ended();
  if (result) on.counts.write_us.add(microseconds_since(writing.began));
  while (!writing_.empty() && writing_.begin()->second.result) {
    const Writing done = std::move(writing_.begin()->second);
    writing_.erase(writing_.begin());
    settle(done);
  }
  pump();
}

void DiskTier::settle(const Writing& done) {
  if (!*done.result) return not_written(done);
  DiskDevice& on = device(done.room.device);
  on.write_settled();
  on.set_block(done.room.at, done.what.block);
  catalogue_.place(done.what.block, Tier::disk, disk_place(done.room.device, done.room.at),
                   done.what.parent);
  KVTIER_POINT("daemon.write.settled");
  let_go(done.what);
}

void DiskTier::not_written(const Writing& done) {
  DiskDevice& on = device(done.room.device);
  usage_.subtract(catalogue_.tenant(done.what.block), catalogue_.record_bytes(done.what.block));
  const Errc code = done.result->error().code;
  if (code == Errc::unavailable) {
    give_back(done.what, done.room, true);
    if (!move_elsewhere(done.what)) give_up(done.what, Drop::offline);
    return;
  }
  ++counts_.failures;
  // Only the device's own failure speaks against the slot; a record that its client scribbled over,
  // or a full index, does not.
  if (code == Errc::io) {
    ++on.counts.failures;
    on.space().retire(done.room.at);
  } else {
    give_back(done.what, done.room, false);
  }
  spdlog::warn("disk tier: block {} was not written: {}",
               to_hex(catalogue_.block(done.what.block).key), done.result->error().message);
  let_go(done.what);
}

// Back to its place in the queue. Each device may fail it once.
bool DiskTier::move_elsewhere(const Waiting& what) {
  if (!any_online() || what.attempts + 1 >= devices_.size()) return false;
  Waiting again = what;
  ++again.attempts;
  queue_.insert(std::ranges::upper_bound(queue_, again.ticket, {}, &Waiting::ticket), again);
  ++counts_.moved_writes;
  return true;
}

void DiskTier::drop_write(Drop why) noexcept {
  ++counts_.dropped_writes;
  ++counts_.drops[static_cast<std::size_t>(why)];
}

void DiskTier::give_up(const Waiting& dropped, Drop why) {
  drop_write(why);
  let_go(dropped);
}

void DiskTier::let_go(const Waiting& what) {
  queued_bytes_ -= catalogue_.record_bytes(what.block);
  catalogue_.set_write_queued(what.block, false);
  note_owed(what.block, false);
  catalogue_.unhold(what.block, Tier::host, what.parent);
  on_unheld(what.block);
}

}  // namespace kvtier::daemon
