#include "client/session/held_blocks.h"

#include <algorithm>

#include "client/session/session.h"
#include "core/base/check.h"

namespace kvtier::session {

HeldBlocks::HeldBlocks(std::shared_ptr<Session> session, std::shared_ptr<NamespaceEntry> ns,
                       std::uint32_t first, const Key& before, std::vector<Key> keys, Proofs proofs,
                       std::uint32_t looked_up)
    : session_(std::move(session)),
      ns_(std::move(ns)),
      first_(first),
      before_(before),
      keys_(std::move(keys)),
      proofs_(std::move(proofs)),
      looked_up_(looked_up) {
  KVTIER_CHECK(proofs_.size() == keys_.size());
}

HeldBlocks::~HeldBlocks() {
  KVTIER_CHECK(uses_ == 0);
  release();
}

void HeldBlocks::grant(std::shared_ptr<const Connection> connection, std::uint64_t id,
                       std::vector<Block> blocks) {
  const std::lock_guard lock(mutex_);
  KVTIER_CHECK(connection_ == nullptr && blocks.size() <= keys_.size());
  connection_ = std::move(connection);
  term_ = connection_->term();
  id_ = id;
  blocks_ = std::move(blocks);
  unsettled_ = static_cast<std::uint32_t>(
      std::ranges::count(blocks_, Presence::on_its_way, &Block::presence));
  settled_at_ = Clock::now();
}

bool HeldBlocks::land(std::uint32_t block, SlotRef slot) {
  const std::lock_guard lock(mutex_);
  if (block >= blocks_.size()) return false;
  Block& b = blocks_[block];
  if (b.presence != Presence::on_its_way) return true;  // a slot is never swapped under a copy
  b.presence = slot ? Presence::ready : Presence::failed;
  b.slot = std::move(slot);
  if (--unsettled_ == 0) {
    settled_at_ = Clock::now();
    changed_.notify_all();
  }
  return true;
}

void HeldBlocks::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

std::uint32_t HeldBlocks::blocks() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::uint32_t>(blocks_.size());
}

Tier HeldBlocks::source(std::uint32_t block) const {
  const std::lock_guard lock(mutex_);
  KVTIER_CHECK(block < blocks_.size());
  return blocks_[block].source;
}

std::array<std::uint32_t, kTiers> HeldBlocks::sources() const {
  std::array<std::uint32_t, kTiers> count{};
  const std::lock_guard lock(mutex_);
  for (const Block& b : blocks_) ++count[index_of(b.source)];
  return count;
}

std::uint32_t HeldBlocks::leading_ready() const {
  const auto end =
      std::ranges::find_if(blocks_, [](const Block& b) { return b.presence != Presence::ready; });
  return static_cast<std::uint32_t>(end - blocks_.begin());
}

std::uint32_t HeldBlocks::wait_ready(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (blocks_.empty() || released_) return 0;
  const bool in_time = changed_.wait_until(
      lock, deadline, [&] { return unsettled_ == 0 || released_ || !connection_->alive(); });
  if (!in_time) Counters::add(session_->counters().deadlines_missed);
  const std::uint32_t ready = released_ ? 0 : leading_ready();
  const auto granted = static_cast<std::uint32_t>(blocks_.size());
  const bool counts = !released_;
  lock.unlock();
  if (counts) note_usable(ready, granted);
  if (alive()) return ready;
  note_loss();
  return 0;
}

std::optional<Clock::time_point> HeldBlocks::settled_at() const {
  const std::lock_guard lock(mutex_);
  if (unsettled_ == 0) return settled_at_;
  if (released_ || !connection_->alive()) return Clock::now();
  return std::nullopt;
}

std::vector<HeldBlocks::Block> HeldBlocks::snapshot() const {
  const std::lock_guard lock(mutex_);
  return blocks_;
}

bool HeldBlocks::alive() const {
  const std::lock_guard lock(mutex_);
  return blocks_.empty() || (!release_sent_ && connection_->holds(term_, Clock::now()));
}

bool HeldBlocks::held() const {
  {
    const std::lock_guard lock(mutex_);
    if (released_) return false;
  }
  return alive();
}

void HeldBlocks::release() {
  std::unique_lock lock(mutex_);
  released_ = true;
  changed_.notify_all();
  if (uses_ == 0) send_release(lock);
}

bool HeldBlocks::begin_use() {
  const std::lock_guard lock(mutex_);
  if (release_sent_) return false;
  ++uses_;
  return true;
}

void HeldBlocks::end_use() {
  std::unique_lock lock(mutex_);
  KVTIER_CHECK(uses_ > 0);
  if (--uses_ == 0 && released_) send_release(lock);
}

void HeldBlocks::send_release(std::unique_lock<std::mutex>& lock) {
  if (std::exchange(release_sent_, true) || id_ == 0) return;
  const auto connection = connection_;
  const std::uint32_t usable = usable_;
  const bool all = usable >= blocks_.size();
  lock.unlock();
  session_->release(connection, id_, all ? std::nullopt : std::optional(usable));
}

void HeldBlocks::note_load(std::uint32_t blocks, std::chrono::steady_clock::duration took) const {
  if (blocks == 0) return;
  Tier slowest = Tier::device;
  {
    const std::lock_guard lock(mutex_);
    for (const Block& b : std::span(blocks_).first(blocks)) slowest = std::max(slowest, b.source);
  }
  session_->counters().loads[index_of(slowest)].add(took, blocks * ns_->layout.record_bytes);
}

void HeldBlocks::note_usable(std::uint32_t usable, std::uint32_t looked_at) {
  const std::lock_guard lock(mutex_);
  // A later load may find there what an earlier one did not.
  if (usable < looked_at) {
    usable_ = usable;
  } else if (usable > usable_) {
    usable_ = kAllUsable;
  }
}

void HeldBlocks::note_loss() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(loss_noted_, true)) return;
  }
  Counters::add(session_->counters().leases_lost);
}

}  // namespace kvtier::session
