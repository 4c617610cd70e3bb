#include "daemon/control/disk_tier.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <utility>

#include "client/base/check.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

using storage::DiskLocation;

DiskTier::DiskTier(Options options, storage::RecordStore* store, Catalogue& catalogue,
                   MemoryTier& host)
    : options_(options),
      store_(store),
      catalogue_(catalogue),
      host_(host),
      space_(options.segments_bytes, std::max<std::uint64_t>(options.segment_bytes, 1)) {}

void DiskTier::set_block(DiskLocation at, BlockId block) {
  if (blocks_in_.size() <= at.segment) blocks_in_.resize(at.segment + 1);
  auto& slots = blocks_in_[at.segment];
  if (slots.size() <= at.slot) {
    // All at once: a segment fills up.
    const std::uint32_t whole =
        storage::slots_per_segment(options_.segment_bytes, space_.slot_bytes_of(at.segment));
    slots.resize(std::max(at.slot + 1, whole), kNoBlock);
  }
  slots[at.slot] = block;
}

DiskLocation DiskTier::place_of(BlockId id) const noexcept {
  const Place at = catalogue_.block(id).places[index_of(Tier::disk)];
  return {at.container, at.slot};
}

DiskLocation DiskTier::unplace(BlockId id) {
  const Place at = catalogue_.unplace(id, Tier::disk);
  set_block({at.container, at.slot}, kNoBlock);
  return {at.container, at.slot};
}

Result<std::uint64_t> DiskTier::recover() {
  if (!present()) return std::uint64_t{0};
  auto namespaces = store_->namespaces();
  if (!namespaces) return namespaces.error();
  for (const auto& [id, encoded] : *namespaces) {
    if (auto opened = catalogue_.namespaces().open(encoded); !opened) {
      spdlog::warn("disk tier: namespace {} is not understood: {}", to_hex(id),
                   opened.error().message);
    }
  }
  std::vector<Recovered> order;
  std::vector<Key> unusable;
  const auto taken = take_over_all(order, unusable);
  if (!taken) return taken.error();
  // Oldest first, and within one access the tail of a prefix before its head: the order of
  // eviction.
  std::sort(order.begin(), order.end(), [](const Recovered& a, const Recovered& b) {
    return std::pair(a.last_access, b.block_index) < std::pair(b.last_access, a.block_index);
  });
  std::vector<BlockId> ids(order.size());
  std::transform(order.begin(), order.end(), ids.begin(), [](const Recovered& r) { return r.id; });
  catalogue_.enlist_newest(ids, Tier::disk);
  const std::uint64_t newest = order.empty() ? 0 : order.back().last_access;
  if (!unusable.empty()) store_->erase(std::move(unusable), [](const Result<void>&) {});
  spdlog::info("disk tier: {} blocks, {} bytes taken over", catalogue_.counts(Tier::disk).blocks,
               catalogue_.counts(Tier::disk).bytes);
  return newest;
}

// The entries come in the order of their keys. Each is taken over a little after it came, when the
// words of the tables that it will change have been loaded.
Result<void> DiskTier::take_over_all(std::vector<Recovered>& order, std::vector<Key>& unusable) {
  constexpr std::size_t kAhead = 16;
  std::array<storage::DiskEntry, kAhead> coming;
  std::size_t came = 0;
  const auto take = [&](const storage::DiskEntry& entry) {
    const auto id = take_over(entry);
    if (id) return order.push_back({entry.last_access, entry.identity.block_index, *id});
    spdlog::warn("disk tier: block {} is not taken over: {}", to_hex(entry.identity.key),
                 id.error().message);
    unusable.push_back(entry.identity.key);
  };
  const auto read = store_->recover([&](const storage::DiskEntry& entry) {
    storage::DiskEntry& place = coming[came % kAhead];
    if (came++ >= kAhead) take(place);
    catalogue_.prefetch(entry.identity.key);
    prefetch_block(entry.at);
    place = entry;
  });
  if (!read) return read;
  for (std::size_t i = came - std::min(came, kAhead); i < came; ++i) take(coming[i % kAhead]);
  return {};
}

void DiskTier::prefetch_block(DiskLocation at) const noexcept {
  if (at.segment >= blocks_in_.size() || at.slot >= blocks_in_[at.segment].size()) return;
  __builtin_prefetch(&blocks_in_[at.segment][at.slot], 1);
}

Result<BlockId> DiskTier::take_over(const storage::DiskEntry& entry) {
  const auto ns = catalogue_.namespaces().find(entry.identity.ns);
  if (!ns) return make_error(Errc::not_found, "its namespace is not known");
  const std::uint64_t bytes = catalogue_.namespaces()[*ns].layout.record_bytes;
  if (bytes != entry.record_bytes) {
    return make_error(Errc::corrupt, "its size is not its namespace's");
  }
  if (catalogue_.taken(entry.identity.key)) return make_error(Errc::corrupt, "indexed twice");
  if (catalogue_.size() == catalogue_.capacity()) {
    return make_error(Errc::no_space, "the index is full: raise index.blocks_max");
  }
  if (auto claimed = space_.claim(entry.at, bytes); !claimed) return claimed.error();
  const BlockId id = catalogue_.add(*ns, entry.identity.key, entry.identity.block_index);
  catalogue_.set_last_access(id, entry.last_access);
  set_block(entry.at, id);
  catalogue_.place_unlisted(id, Tier::disk, {entry.at.segment, entry.at.slot});
  return id;
}

void DiskTier::write_through(BlockId id, const Key& parent) {
  if (!present() || !options_.admit) return;
  const Block& block = catalogue_.block(id);
  if (block.write_queued || block.tiers.has(Tier::disk)) return;
  const std::uint64_t bytes = catalogue_.record_bytes(id);
  // One block may always wait, however small the bound.
  const bool room = queued() < options_.write_queue_max &&
                    (queued() == 0 || queued_bytes_ + bytes <= options_.write_queue_bytes_max);
  if (!room || !catalogue_.hold(id, Tier::host)) {
    ++counts_.dropped_writes;
    return;
  }
  queued_bytes_ += bytes;
  catalogue_.set_write_queued(id, true);
  queue_.push_back({id, parent, next_ticket_++});
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

// False: not now; a completion will pump again.
bool DiskTier::submit(const Waiting& next) {
  const Block& block = catalogue_.block(next.block);
  const std::uint64_t bytes = catalogue_.record_bytes(next.block);
  const auto room = room_for(bytes);
  if (!room) {
    if (emptying_ || empty_a_segment_for(bytes)) return false;
    if (!writing_.empty()) return false;
    give_up(next);
    return true;
  }
  const Place from = block.places[index_of(Tier::host)];
  const NamespaceId ns = catalogue_.namespaces()[block.ns].id;
  storage::RecordStore::Write write;
  write.identity = {ns, block.key, next.parent, block.block_index};
  write.last_access = block.last_access;
  write.to = room->at;
  write.slot_bytes = bytes;
  write.extent = ExtentId(from.container);
  write.slot = from.slot;
  write.record_bytes = bytes;
  write.replaces = room->replaces;
  writing_.emplace(next.ticket, Writing{next, *room, std::nullopt});
  const auto sent = store_->write(
      write, [this, ticket = next.ticket](const Result<void>& result) { written(ticket, result); });
  if (!sent) {
    writing_.erase(next.ticket);
    give_up(next);
    give_back(*room);
  }
  return true;
}

// The victim, if any, is out of the index already; its entry on disk goes before the slot is used again.
void DiskTier::give_back(const Room& room) {
  if (!room.replaces) return space_.free(room.at);
  // Written anew meanwhile: the entry to erase may by now be of that write.
  if (const BlockId again = catalogue_.find_any(*room.replaces); again != kNoBlock) {
    const Block& block = catalogue_.block(again);
    if (block.write_queued || block.tiers.has(Tier::disk)) return space_.retire(room.at);
  }
  store_->erase({*room.replaces}, [this, at = room.at](const Result<void>& result) {
    result ? space_.free(at) : space_.retire(at);
    pump();
  });
}

std::optional<DiskTier::Room> DiskTier::room_for(std::uint64_t record_bytes) {
  if (const auto free = space_.allocate(record_bytes)) return Room{*free, std::nullopt};
  const BlockId victim = catalogue_.oldest(Tier::disk, record_bytes);
  if (victim == kNoBlock) return std::nullopt;
  const Key key = catalogue_.block(victim).key;
  ++counts_.evictions;
  return Room{unplace(victim), key};
}

// Records of one size have no room while others fill the disk: the segment of the coldest of those is
// emptied, as far as nobody reads from it.
bool DiskTier::empty_a_segment_for(std::uint64_t record_bytes) {
  const BlockId coldest = catalogue_.oldest_of_other_size(Tier::disk, record_bytes);
  if (coldest == kNoBlock) return false;
  std::vector<BlockId> going;
  for (const BlockId id : blocks_in_[place_of(coldest).segment]) {
    if (id == kNoBlock) continue;
    if (catalogue_.block(id).holds[index_of(Tier::disk)] == 0) going.push_back(id);
  }
  counts_.evictions += going.size();
  emptying_ = true;
  forget(going, true);
  return true;
}

void DiskTier::forget(std::span<const BlockId> ids) { forget(ids, false); }

void DiskTier::forget(std::span<const BlockId> ids, bool emptying) {
  std::vector<Key> keys;
  std::vector<DiskLocation> places;
  for (const BlockId id : ids) catalogue_.prefetch(catalogue_.block(id).key);
  for (const BlockId id : ids) {
    keys.push_back(catalogue_.block(id).key);
    places.push_back(unplace(id));
  }
  if (keys.empty()) return;
  store_->erase(std::move(keys), [this, emptying, places = std::move(places)](const Result<void>& result) {
    for (const DiskLocation at : places) result ? space_.free(at) : space_.retire(at);
    if (emptying) emptying_ = false;
    pump();
  });
}

void DiskTier::written(std::uint64_t ticket, const Result<void>& result) {
  writing_.at(ticket).result = result;
  while (!writing_.empty() && writing_.begin()->second.result) {
    const Writing done = std::move(writing_.begin()->second);
    writing_.erase(writing_.begin());
    settle(done);
  }
  pump();
}

void DiskTier::settle(const Writing& done) {
  const BlockId id = done.what.block;
  if (*done.result) {
    const DiskLocation to = done.room.at;
    set_block(to, id);
    catalogue_.place(id, Tier::disk, {to.segment, to.slot}, done.what.parent);
  } else {
    ++counts_.failures;
    // Only the device's own failure speaks against the slot; a record that its client scribbled over, or a
    // full index, does not.
    if (done.result->error().code == Errc::io) {
      space_.retire(done.room.at);
    } else {
      give_back(done.room);
    }
    spdlog::warn("disk tier: block {} was not written: {}", to_hex(catalogue_.block(id).key),
                 done.result->error().message);
  }
  let_go(done.what);
}

void DiskTier::give_up(const Waiting& dropped) {
  ++counts_.dropped_writes;
  let_go(dropped);
}

void DiskTier::let_go(const Waiting& what) {
  queued_bytes_ -= catalogue_.record_bytes(what.block);
  catalogue_.set_write_queued(what.block, false);
  catalogue_.unhold(what.block, Tier::host, what.parent);
  on_unheld(what.block);
}

Result<void> DiskTier::read(BlockId id, Place to, std::function<void(Result<void>)> done) {
  const Block& block = catalogue_.block(id);
  const std::uint64_t bytes = catalogue_.record_bytes(id);
  storage::RecordStore::Read read;
  read.ns = catalogue_.namespaces()[block.ns].id;
  read.key = block.key;
  read.from = place_of(id);
  read.slot_bytes = bytes;
  read.extent = ExtentId(to.container);
  read.slot = to.slot;
  read.record_bytes = bytes;
  if (!catalogue_.hold(id, Tier::disk)) {
    return make_error(Errc::no_space, "too many readers of one block");
  }
  auto sent = store_->read(read, [this, id, done = std::move(done)](const Result<void>& result) {
    catalogue_.unhold(id, Tier::disk);
    if (!result) {
      // Forgotten, so that it is not asked for again, and its slot is not used again.
      ++counts_.failures;
      spdlog::warn("disk tier: block {} did not hold: {}", to_hex(catalogue_.block(id).key),
                   result.error().message);
    }
    done(result);
  });
  if (!sent) catalogue_.unhold(id, Tier::disk);
  return sent;
}

void DiskTier::retire(BlockId id) {
  const Key key = catalogue_.block(id).key;
  space_.retire(unplace(id));
  store_->erase({key}, [](const Result<void>&) {});
}

void DiskTier::flush(std::function<void(Result<void>)> done) {
  if (!present()) return done({});
  flushes_.push_back({next_ticket_, std::move(done)});
  settle_flushes();
}

void DiskTier::settle_flushes() {
  while (!flushes_.empty()) {
    const std::uint64_t up_to = flushes_.front().up_to;
    const bool queued_before = !queue_.empty() && queue_.front().ticket < up_to;
    const bool writing_before = !writing_.empty() && writing_.begin()->first < up_to;
    if (queued_before || writing_before) return;
    store_->flush(std::move(flushes_.front().done));
    flushes_.pop_front();
  }
}

void DiskTier::touched(BlockId id) {
  const Block& block = catalogue_.block(id);
  if (!present() || !block.tiers.has(Tier::disk) || block.stamp_dirty) return;
  catalogue_.set_stamp_dirty(id, true);
  dirty_.push_back(block.key);
  if (dirty_.size() >= limits::kStampsBatchMax) write_stamps();
}

void DiskTier::write_stamps() {
  if (!present() || dirty_.empty()) return;
  std::vector<std::pair<Key, std::uint64_t>> stamps;
  for (const Key& key : dirty_) {
    const BlockId id = catalogue_.find_any(key);
    if (id == kNoBlock) continue;
    catalogue_.set_stamp_dirty(id, false);
    if (catalogue_.block(id).tiers.has(Tier::disk)) {
      stamps.emplace_back(key, catalogue_.block(id).last_access);
    }
  }
  dirty_.clear();
  if (!stamps.empty()) store_->touch(std::move(stamps));
}

void DiskTier::remember_namespace(std::uint16_t ns) {
  if (!present()) return;
  const auto& known = catalogue_.namespaces()[ns];
  store_->remember_namespace(known.id, known.encoded);
}

}  // namespace kvtier::daemon
