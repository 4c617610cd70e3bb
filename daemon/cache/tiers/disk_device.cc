#include "daemon/cache/tiers/disk_device.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/points.h"
#include "core/base/prefetch.h"
#include "daemon/limits.h"
#include "storage/index/segments.h"

namespace kvtier::daemon {

using storage::DiskLocation;

DiskDevice::DiskDevice(Options options, storage::RecordStore& store)
    : options_(std::move(options)),
      store_(&store),
      space_(options_.segments_bytes, std::max<std::uint64_t>(options_.segment_bytes, 1)) {}

const char* DiskDevice::state_name() const noexcept {
  if (online()) return "online";
  if (readable()) return "read-only";
  return store_->unknown() || store_->to_recover() ? "late" : "offline";
}

void DiskDevice::set_state(storage::DiskState state, const std::string& why) {
  state_ = state;
  ++health_changes_;
  set_why(why);
}

bool DiskDevice::free_some() {
  for (std::uint32_t freed = 0; online() && !free_when_online_.empty(); ++freed) {
    if (freed == limits::kFreeStep) return true;
    space_.free(free_when_online_.back());
    free_when_online_.pop_back();
  }
  return false;
}

void DiskDevice::set_block(DiskLocation at, BlockId block) {
  if (blocks_in_.size() <= at.segment) {
    blocks_in_.resize(at.segment + 1);
    since_.resize(at.segment + 1);
  }
  auto& slots = blocks_in_[at.segment];
  if (slots.size() <= at.slot) {
    // All at once: a segment fills up.
    const std::uint32_t whole =
        storage::slots_per_segment(options_.segment_bytes, space_.slot_bytes_of(at.segment));
    slots.resize(std::max(at.slot + 1, whole), kNoBlock);
  }
  KVTIER_CHECK((slots[at.slot] == kNoBlock) != (block == kNoBlock));
  slots[at.slot] = block;
  note_since(at, block == kNoBlock);
  block == kNoBlock ? --blocks_ : ++blocks_;
  for (Watched& watched : watched_) watched.disturbed |= watched.at == at;
}

// Of what comes while no time is known, as at a start, nothing is noted.
void DiskDevice::note_since(DiskLocation at, bool gone) {
  auto& of_segment = since_[at.segment];
  if (of_segment.size() <= at.slot) {
    if (now_ == 0) return;
    of_segment.resize(blocks_in_[at.segment].size());
  }
  std::uint32_t& since = of_segment[at.slot];
  if (gone && since != 0) counts.lifetimes.add(now_ - since);
  since = now_;
}

BlockId DiskDevice::block_at(DiskLocation at) const noexcept {
  if (at.segment >= blocks_in_.size() || at.slot >= blocks_in_[at.segment].size()) return kNoBlock;
  return blocks_in_[at.segment][at.slot];
}

void DiskDevice::set_evictable(std::uint32_t segment, bool evictable, std::uint32_t count) {
  if (evictable_in_.size() <= segment) evictable_in_.resize(segment + 1);
  KVTIER_CHECK(evictable || evictable_in_[segment] >= count);
  evictable_in_[segment] += evictable ? count : 0 - count;
}

bool DiskDevice::can_be_emptied(std::uint32_t segment) const {
  const auto use = space_.use_of(segment);
  const std::uint32_t evictable = segment < evictable_in_.size() ? evictable_in_[segment] : 0;
  return use.retired == 0 && use.in_use == evictable;
}

void DiskDevice::prefetch(DiskLocation at) const noexcept {
  if (at.segment >= blocks_in_.size() || at.slot >= blocks_in_[at.segment].size()) return;
  prefetch_memory(&blocks_in_[at.segment][at.slot]);
}

void DiskDevice::erase(std::vector<Key> keys, std::vector<DiskLocation> slots,
                       std::function<void()> done) {
  began();
  store_->erase(std::move(keys), [this, slots = std::move(slots),
                                  done = std::move(done)](const Result<void>& result) {
    ended();
    erased(slots, result);
    done();
  });
}

void DiskDevice::erased(const std::vector<DiskLocation>& slots, const Result<void>& result) {
  KVTIER_POINT("daemon.disk.erased");
  const bool later = !result && result.error().code == Errc::unavailable;
  for (const DiskLocation at : slots) {
    if (later && !online()) {
      free_when_online_.push_back(at);
    } else if (result || later) {
      space_.free(at);
    } else {
      space_.retire(at);
    }
  }
}

void DiskDevice::leave_out_bad_places() {
  for (const storage::BadPlace& place : store_->bad_places()) space_.mark_bad(place);
}

void DiskDevice::doubt(DiskLocation at, std::function<void()> done) {
  const std::uint64_t slot_bytes = space_.slot_bytes_of(at.segment);
  began();
  const auto asked = store_->test_place(
      at, slot_bytes, [this, at, done = std::move(done)](const Result<void>& result) {
        ended();
        tested(at, result);
        done();
      });
  if (asked) return;
  ended();
  space_.retire(at);
}

void DiskDevice::doubt(DiskLocation at, std::vector<Key> keys, std::function<void()> done) {
  began();
  store_->erase(std::move(keys), [this, at, done = std::move(done)](const Result<void>& result) {
    ended();
    if (result) return doubt(at, done);
    space_.retire(at);
  });
}

void DiskDevice::tested(DiskLocation at, const Result<void>& result) {
  KVTIER_POINT("daemon.disk.tested");
  if (!result && result.error().code == Errc::unavailable) return space_.retire(at);
  if (!result) space_.mark_bad(storage::place_of(at, space_.slot_bytes_of(at.segment)));
  space_.free(at);
}

void DiskDevice::watch(DiskLocation at) {
  KVTIER_CHECK(watched_.size() < storage::kScrubsMax);
  watched_.push_back({at, false});
}

bool DiskDevice::unwatch(DiskLocation at) {
  const auto found = std::ranges::find(watched_, at, &Watched::at);
  KVTIER_CHECK(found != watched_.end());
  const bool kept = !found->disturbed;
  watched_.erase(found);
  return kept;
}

void DiskDevice::flush(std::function<void(Result<void>)> done) {
  began();
  store_->flush(
      [this, covered = writes_settled_, done = std::move(done)](const Result<void>& result) {
        ended();
        if (result) writes_synced_ = std::max(writes_synced_, covered);
        done(result);
      });
}

DiskDevice::Time DiskDevice::began() noexcept {
  const Time now = options_.now();
  if (on_their_way_++ == 0) moved_ = now;
  return now;
}

void DiskDevice::ended() noexcept {
  KVTIER_CHECK(on_their_way_ > 0);
  --on_their_way_;
  moved_ = options_.now();
}

std::chrono::milliseconds DiskDevice::stuck_for() const noexcept {
  if (on_their_way_ == 0) return {};
  return std::chrono::duration_cast<std::chrono::milliseconds>(options_.now() - moved_);
}

}  // namespace kvtier::daemon
