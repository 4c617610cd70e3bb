#include "daemon/cache/tiers/write_through.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/points.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

using storage::DiskLocation;

namespace {

// Of a clock that has stood: more of the budget is not handed out at once.
constexpr std::uint32_t kLongestStepS = 60;

}  // namespace

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

void WriteThrough::committed(BlockId id) {
  if (options_.admission == Admission::all || is_worth_a_write(id)) offer(id);
}

void WriteThrough::seen_again(BlockId id) {
  const Block& block = catalogue_.block(id);
  if (!block.tiers.has(Tier::host) || block.doomed) return;
  if (options_.admission == Admission::second_hit ||
      (options_.admission == Admission::all && block.left_out) || is_worth_a_write(id)) {
    offer(id);
  }
}

// Those that come behind a block that is not would be of no use on disk.
bool WriteThrough::is_worth_a_write(BlockId id) const noexcept {
  return options_.admission == Admission::expected_reuse && is_behind_its_parent(id) &&
         budget_.admits(catalogue_.chance_of_reuse(id, Tier::disk));
}

void WriteThrough::pass_time(std::uint32_t now) noexcept {
  constexpr double kDay = 24 * 3600;
  const std::uint32_t passed = now - std::exchange(passed_, now);
  if (options_.bytes_per_day == 0) {
    budget_ = {};  // what was learnt under one that is gone, and written meanwhile, counts for none
    return;
  }
  // The first time says nothing of how long it has been.
  if (passed == now) return;
  for (std::uint32_t second = 0; second < std::min<std::uint32_t>(passed, kLongestStepS);
       ++second) {
    budget_.allow(static_cast<double>(options_.bytes_per_day) / kDay);
    budget_.step();
  }
}

void WriteThrough::demoted(BlockId id) {
  const Block& block = catalogue_.block(id);
  if (options_.admission != Admission::none && block.tiers.has(Tier::host) && !block.doomed)
    offer(id);
}

void WriteThrough::owed(BlockId id) {
  if (catalogue_.block(id).write_queued) return;  // another that was owed took it along
  note_owed(id, false);
  if (options_.admission != Admission::none) offer(id, Offered::again);
}

void WriteThrough::note_owed(BlockId id, bool owed) noexcept {
  const Place at = catalogue_.block(id).places[index_of(Tier::host)];
  host_.table(at).set_flags(at.slot, owed ? storage::kDiskOwed : 0);
}

// The block, and before it those of its prefix that are neither on disk nor on their way there.
void WriteThrough::offer(BlockId id, Offered how) {
  if (devices_.size() == 0) return;
  const Block& block = catalogue_.block(id);
  if (block.write_queued || block.tiers.has(Tier::disk)) return;
  if (const auto why = gather(id, how)) return leave_out(id, *why);
  for (auto next = gathered_.rbegin(); next != gathered_.rend(); ++next) {
    if (!enqueue(*next)) return leave_out(id, WriteDrop::readers);
  }
  pump();
}

// Sets `gathered_`, or says why the block cannot be written.
std::optional<WriteDrop> WriteThrough::gather(BlockId id, Offered how) {
  if (!devices_.any_online()) return WriteDrop::offline;
  if (!devices_.any_takes_records()) return WriteDrop::no_room;
  const std::uint64_t bytes = catalogue_.record_bytes(id);  // of each: one namespace has one size
  gathered_.clear();
  for (BlockId at = id;;) {
    gathered_.push_back(at);
    const Key& key = catalogue_.parent(at);
    const BlockId parent = key.is_zero() ? kNoBlock : catalogue_.find(catalogue_.block(id).ns, key);
    const bool follows = parent != kNoBlock && catalogue_.block(parent).write_queued;
    const bool to_the_brim = how == Offered::again || (follows && gathered_.size() == 1);
    if (!has_room(gathered_.size(), gathered_.size() * bytes, to_the_brim))
      return WriteDrop::queue_full;
    if (key.is_zero() || follows) return std::nullopt;
    if (parent == kNoBlock) return WriteDrop::parent;
    const Block& before = catalogue_.block(parent);
    if (before.tiers.has(Tier::disk)) return std::nullopt;
    if (!before.tiers.has(Tier::host)) return WriteDrop::parent;
    if (gathered_.size() == limits::kTakenAlongMax) return WriteDrop::queue_full;
    at = parent;
  }
}

// One block may always wait, however small the bound.
bool WriteThrough::has_room(std::size_t blocks, std::uint64_t bytes,
                            bool to_the_brim) const noexcept {
  if (queued() == 0 && blocks == 1) return options_.queue_max > 0;
  const bool is_short =
      2 * queued() < options_.queue_max && 2 * queued_bytes_ < options_.queue_bytes_max;
  return (to_the_brim || is_short) && queued() + blocks <= options_.queue_max &&
         queued_bytes_ + bytes <= options_.queue_bytes_max;
}

bool WriteThrough::enqueue(BlockId id) {
  if (!catalogue_.hold(id, Tier::host)) return false;
  if (catalogue_.block(id).left_out) {
    catalogue_.set_left_out(id, false);
    --left_out_;
  }
  queued_bytes_ += catalogue_.record_bytes(id);
  budget_.wrote(static_cast<double>(catalogue_.record_bytes(id)));
  catalogue_.set_write_queued(id, true);
  note_owed(id, true);
  queue_.push_back({id, catalogue_.parent(id), next_ticket_++});
  KVTIER_POINT("daemon.write.queued");
  return true;
}

// kNoBlock where there is none, or where the block is the first of its prefix.
BlockId WriteThrough::parent_of(BlockId id) const noexcept {
  const Key& key = catalogue_.parent(id);
  return key.is_zero() ? kNoBlock : catalogue_.find_any(key);
}

// What comes before it in its prefix and is not on its way: no more are between them than are being
// written.
BlockId WriteThrough::last_on_disk_before(BlockId id) const noexcept {
  BlockId at = parent_of(id);
  while (at != kNoBlock && !catalogue_.block(at).tiers.has(Tier::disk)) at = parent_of(at);
  return at;
}

bool WriteThrough::is_behind_its_parent(BlockId id) const noexcept {
  if (catalogue_.parent(id).is_zero()) return true;
  const BlockId parent = parent_of(id);
  return parent != kNoBlock &&
         (catalogue_.block(parent).tiers.has(Tier::disk) || catalogue_.block(parent).write_queued);
}

// It has a host placement.
void WriteThrough::leave_out(BlockId id, WriteDrop why) {
  if (!catalogue_.block(id).left_out) drop(why);
  mark_left_out(id);
}

void WriteThrough::mark_left_out(BlockId id) {
  if (catalogue_.block(id).left_out) return;
  catalogue_.set_left_out(id, true);
  ++left_out_;
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
  if (!is_behind_its_parent(next.block)) {
    give_up(next, WriteDrop::parent);
    return true;
  }
  const std::uint64_t bytes = catalogue_.record_bytes(next.block);
  const TenantId tenant = catalogue_.tenant(next.block);
  const auto slot = room_.find(tenant, bytes, last_on_disk_before(next.block));
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
    // The store's own word of what it is now is on its way.
    const bool offline = sent.error().code == Errc::unavailable;
    if (offline && on.online())
      devices_.set_state(slot->device, storage::DiskState::read_only, sent.error().message);
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
  if (!is_behind_its_parent(done.what.block)) return take_back(done);
  DiskDevice& on = devices_[done.slot.device];
  on.write_settled();
  on.set_block(done.slot.at, done.what.block);
  catalogue_.place(done.what.block, Tier::disk, disk_place(done.slot.device, done.slot.at),
                   done.what.parent);
  KVTIER_POINT("daemon.write.settled");
  let_go(done.what);
}

// ---- what fails

// It was written, but its parent failed.
void WriteThrough::take_back(const Writing& done) {
  devices_.subtract_usage(catalogue_.tenant(done.what.block),
                          catalogue_.record_bytes(done.what.block));
  give_back(done.what, done.slot, true);
  give_up(done.what, WriteDrop::parent);
}

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
  spdlog::warn("disk tier: block {} was not written: {}",
               to_hex(catalogue_.block(done.what.block).key), done.result->error().message);
  // Only the device's own failure speaks against the slot; a record that its client scribbled over,
  // or a full index, does not.
  if (code == Errc::io) {
    ++on.counts.failures;
    on.doubt(done.slot.at, [this] { pump(); });
    if (!done.what.failed) return write_again(done.what);
  } else {
    give_back(done.what, done.slot, false);
  }
  mark_left_out(done.what.block);
  let_go(done.what);
}

// Once, for what follows it in its prefix would be of no use: the slot was bad, or the device is,
// which others find too.
void WriteThrough::write_again(const Waiting& what) {
  Waiting again = what;
  again.failed = true;
  put_back(again);
}

// Back to its place in the queue.
bool WriteThrough::move_elsewhere(const Waiting& what) {
  if (!devices_.any_online() || what.attempts + 1 >= devices_.size()) return false;
  Waiting again = what;
  ++again.attempts;
  put_back(again);
  ++counts_.moved_writes;
  return true;
}

void WriteThrough::put_back(const Waiting& what) {
  queue_.insert(std::ranges::upper_bound(queue_, what.ticket, {}, &Waiting::ticket), what);
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
  leave_out(dropped.block, why);
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
