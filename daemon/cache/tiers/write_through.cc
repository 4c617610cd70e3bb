#include "daemon/cache/tiers/write_through.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/points.h"

namespace kvtier::daemon {

using storage::DiskLocation;

WriteThrough::WriteThrough(Options options, Catalogue& catalogue, MemoryTier& host,
                           DiskDevices& devices, DiskRoom& room, DiskCounts& counts)
    : options_(std::move(options)),
      catalogue_(catalogue),
      host_(host),
      devices_(devices),
      room_(room),
      counts_(counts) {
  devices_.on_room = [this] { pump(); };
}

// ---- who is admitted

void WriteThrough::committed(BlockId id, const Key& parent) {
  if (options_.admission == Admission::all) queue(id, parent);
}

void WriteThrough::seen_again(BlockId id) {
  const Block& block = catalogue_.block(id);
  if (!admits_second_hits() || !block.tiers.has(Tier::host) || block.doomed) return;
  const Place at = block.places[index_of(Tier::host)];
  queue(id, host_.table(at).entry(at.slot).parent);
}

void WriteThrough::demoted(BlockId id) {
  const Block& block = catalogue_.block(id);
  if (options_.admission != Admission::none && block.tiers.has(Tier::host) && !block.doomed)
    queue(id, catalogue_.parent(id));
}

void WriteThrough::owed(BlockId id, const Key& parent) {
  note_owed(id, false);
  if (options_.admission != Admission::none) queue(id, parent);
}

void WriteThrough::note_owed(BlockId id, bool owed) noexcept {
  const Place at = catalogue_.block(id).places[index_of(Tier::host)];
  host_.table(at).set_flags(at.slot, owed ? storage::kDiskOwed : 0);
}

void WriteThrough::queue(BlockId id, const Key& parent) {
  if (devices_.size() == 0) return;
  const Block& block = catalogue_.block(id);
  if (block.write_queued || block.tiers.has(Tier::disk)) return;
  const std::uint64_t bytes = catalogue_.record_bytes(id);
  // One block may always wait, however small the bound.
  const bool room = queued() < options_.queue_max &&
                    (queued() == 0 || queued_bytes_ + bytes <= options_.queue_bytes_max);
  if (!room) return drop(WriteDrop::queue_full);
  if (!devices_.any_online()) return drop(WriteDrop::offline);
  if (!catalogue_.hold(id, Tier::host)) return drop(WriteDrop::readers);
  queued_bytes_ += bytes;
  catalogue_.set_write_queued(id, true);
  note_owed(id, true);
  queue_.push_back({id, parent, next_ticket_++});
  KVTIER_POINT("daemon.write.queued");
  pump();
}

// ---- on its way

void WriteThrough::pump() {
  if (std::exchange(pumping_, true)) return;  // a completion that ran inside submit()
  while (!queue_.empty() && writing_.size() < options_.submitted_max) {
    const Waiting next = queue_.front();
    if (!submit(next)) break;
    queue_.pop_front();
  }
  pumping_ = false;
  settle_flushes();
}

// False: not now; a completion will pump again. `next` is the head of the queue.
bool WriteThrough::submit(const Waiting& next) {
  const std::uint64_t bytes = catalogue_.record_bytes(next.block);
  const TenantId tenant = catalogue_.tenant(next.block);
  const auto slot = room_.find(tenant, bytes);
  if (!slot) {
    // One tenant that cannot make room below its quota keeps nobody waiting.
    if (room_.over_quota(tenant, bytes)) {
      give_up(next, WriteDrop::quota);
      return true;
    }
    if (devices_.any_online() && room_.more(tenant, bytes)) return false;
    if (devices_.any_online() && !writing_.empty()) return false;
    give_up(next, devices_.any_online() ? WriteDrop::no_room : WriteDrop::offline);
    return true;
  }
  devices_.add_usage(tenant, bytes);
  DiskDevice& on = devices_[slot->device];
  Writing writing{next, *slot, std::nullopt, on.began()};
  writing_.emplace(next.ticket, std::move(writing));
  if (const auto sent = send(next, *slot); !sent) {
    writing_.erase(next.ticket);
    on.ended();
    devices_.subtract_usage(tenant, bytes);
    // The store's own word that it is offline is on its way.
    const bool offline = sent.error().code == Errc::unavailable;
    if (offline) devices_.set_online(slot->device, false, sent.error().message);
    if (!offline || !move_elsewhere(next))
      give_up(next, offline ? WriteDrop::offline : WriteDrop::queue_full);
    give_back(next, *slot, false);
  }
  return true;
}

Result<void> WriteThrough::send(const Waiting& next, const DiskRoom::Slot& slot) {
  const Block& block = catalogue_.block(next.block);
  const Place from = block.places[index_of(Tier::host)];
  storage::RecordStore::Write write;
  write.identity = {catalogue_.namespaces()[block.ns].id, block.key, next.parent,
                    block.block_index};
  write.last_access = block.last_access;
  write.to = slot.at;
  write.slot_bytes = write.record_bytes = catalogue_.record_bytes(next.block);
  write.extent = ExtentId(from.container);
  write.slot = from.slot;
  write.replaces = slot.replaces;
  auto sent = devices_[slot.device].store().write(
      write, [this, ticket = next.ticket](const Result<void>& result) { written(ticket, result); });
  KVTIER_POINT("daemon.write.submitted");
  return sent;
}

void WriteThrough::written(std::uint64_t ticket, const Result<void>& result) {
  Writing& writing = writing_.at(ticket);
  writing.result = result;
  DiskDevice& on = devices_[writing.slot.device];
  on.ended();
  if (result) {
    const auto took = options_.now() - writing.began;
    on.counts.write_us.add(static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(took).count()));
  }
  while (!writing_.empty() && writing_.begin()->second.result) {
    const Writing done = std::move(writing_.begin()->second);
    writing_.erase(writing_.begin());
    settle(done);
  }
  pump();
}

void WriteThrough::given_up(BlockId id, std::uint32_t device, DiskLocation at) {
  for (auto& [ticket, writing] : writing_) {
    if (writing.what.block == id && writing.slot.device == device && writing.slot.at == at &&
        writing.result) {
      writing.result = make_error(Errc::unavailable, "the sync of its segment failed");
    }
  }
}

void WriteThrough::settle(const Writing& done) {
  if (!*done.result) return not_written(done);
  DiskDevice& on = devices_[done.slot.device];
  on.write_settled();
  on.set_block(done.slot.at, done.what.block);
  catalogue_.place(done.what.block, Tier::disk, disk_place(done.slot.device, done.slot.at),
                   done.what.parent);
  KVTIER_POINT("daemon.write.settled");
  let_go(done.what);
}

// ---- what fails

void WriteThrough::not_written(const Writing& done) {
  DiskDevice& on = devices_[done.slot.device];
  devices_.subtract_usage(catalogue_.tenant(done.what.block),
                          catalogue_.record_bytes(done.what.block));
  const Errc code = done.result->error().code;
  if (code == Errc::unavailable) {
    give_back(done.what, done.slot, true);
    if (!move_elsewhere(done.what)) give_up(done.what, WriteDrop::offline);
    return;
  }
  ++counts_.failures;
  // Only the device's own failure speaks against the slot; a record that its client scribbled over,
  // or a full index, does not.
  if (code == Errc::io) {
    ++on.counts.failures;
    on.space().retire(done.slot.at);
  } else {
    give_back(done.what, done.slot, false);
  }
  spdlog::warn("disk tier: block {} was not written: {}",
               to_hex(catalogue_.block(done.what.block).key), done.result->error().message);
  let_go(done.what);
}

// Back to its place in the queue.
bool WriteThrough::move_elsewhere(const Waiting& what) {
  if (!devices_.any_online() || what.attempts + 1 >= devices_.size()) return false;
  Waiting again = what;
  ++again.attempts;
  queue_.insert(std::ranges::upper_bound(queue_, again.ticket, {}, &Waiting::ticket), again);
  ++counts_.moved_writes;
  return true;
}

// Whether the device has, or is about to get, the block of this key.
bool WriteThrough::on_or_to(std::uint32_t number, const Key& key) const noexcept {
  const BlockId id = catalogue_.find_any(key);
  if (id == kNoBlock) return false;
  if (catalogue_.block(id).tiers.has(Tier::disk)) return device_of(devices_.place_of(id)) == number;
  return std::ranges::any_of(writing_, [&](const auto& writing) {
    return writing.second.what.block == id && writing.second.slot.device == number;
  });
}

// The victim, if any, is out of the catalogue already; its entry on disk goes before the slot is
// used again, and so does the entry of the block itself if it may be there.
void WriteThrough::give_back(const Waiting& what, const DiskRoom::Slot& slot,
                             bool perhaps_written) {
  DiskDevice& on = devices_[slot.device];
  std::vector<Key> keys;
  std::vector<DiskLocation> slots{slot.at};
  if (slot.replaces && on_or_to(slot.device, *slot.replaces)) {
    // Written anew there meanwhile: the entry to erase may by now be of that write.
    on.space().retire(slot.at);
    slots.clear();
  } else if (slot.replaces) {
    keys.push_back(*slot.replaces);
  }
  if (perhaps_written) keys.push_back(catalogue_.block(what.block).key);
  if (!keys.empty()) return on.erase(std::move(keys), std::move(slots), [this] { pump(); });
  if (!slots.empty()) on.space().free(slot.at);
}

void WriteThrough::drop(WriteDrop why) noexcept {
  ++counts_.dropped_writes;
  ++counts_.drops[static_cast<std::size_t>(why)];
}

void WriteThrough::give_up(const Waiting& dropped, WriteDrop why) {
  drop(why);
  let_go(dropped);
}

void WriteThrough::let_go(const Waiting& what) {
  queued_bytes_ -= catalogue_.record_bytes(what.block);
  catalogue_.set_write_queued(what.block, false);
  note_owed(what.block, false);
  catalogue_.unhold(what.block, Tier::host, what.parent);
  on_unheld(what.block);
}

// ---- flushes

void WriteThrough::flush(std::function<void(Result<void>)> done) {
  if (devices_.size() == 0) return done({});
  flushes_.push_back({next_ticket_, std::move(done)});
  settle_flushes();
}

void WriteThrough::settle_flushes() {
  while (!flushes_.empty()) {
    const std::uint64_t up_to = flushes_.front().up_to;
    const bool queued_before = !queue_.empty() && queue_.front().ticket < up_to;
    const bool writing_before = !writing_.empty() && writing_.begin()->first < up_to;
    if (queued_before || writing_before) return;
    auto done = std::move(flushes_.front().done);
    flushes_.pop_front();
    flush_devices(std::move(done));
  }
}

// All devices at a time. One that is offline matters only if it may have lost what was written to
// it.
void WriteThrough::flush_devices(std::function<void(Result<void>)> done) {
  struct Joined {
    std::size_t waiting = 1;
    Result<void> result;
    std::function<void(Result<void>)> done;
  };
  const auto joined = std::make_shared<Joined>();
  joined->done = std::move(done);
  const auto ended = [joined](const Result<void>& result) {
    if (!result && joined->result) joined->result = result;
    if (--joined->waiting > 0) return;
    KVTIER_POINT("daemon.flush.done");
    joined->done(joined->result);
  };
  KVTIER_POINT("daemon.flush.sent");
  for (const auto& on : devices_.all()) {
    if (!on->online() && !on->unsynced()) continue;
    ++joined->waiting;
    on->flush(ended);
  }
  ended({});
}

}  // namespace kvtier::daemon
