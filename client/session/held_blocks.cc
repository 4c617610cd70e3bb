#include "client/session/held_blocks.h"

#include <sys/eventfd.h>
#include <unistd.h>

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
  std::unique_lock lock(mutex_);
  if (block >= blocks_.size()) return false;
  Block& b = blocks_[block];
  if (b.presence != Presence::on_its_way) return true;  // a slot is never swapped under a copy
  b.presence = slot ? Presence::ready : Presence::failed;
  b.slot = std::move(slot);
  if (--unsettled_ == 0) {
    settled_at_ = Clock::now();
    tell(lock);
  }
  return true;
}

void HeldBlocks::wake() {
  std::unique_lock lock(mutex_);
  tell(lock);
}

void HeldBlocks::expect_answer() {
  const std::lock_guard lock(mutex_);
  asked_ = true;
}

bool HeldBlocks::answered(const Result<void>& answer) {
  count_lookup(answer.has_value());
  std::unique_lock lock(mutex_);
  const bool wanted = std::exchange(asked_, false) && !released_;
  if (wanted && !answer) why_ = answer.error();
  if (wanted && due()) tell(lock);
  return wanted;
}

void HeldBlocks::expire() {
  std::unique_lock lock(mutex_);
  if (due()) return;
  overdue_ = true;
  if (std::exchange(asked_, false))
    why_ = make_error(Errc::deadline, "kvtierd did not answer a lease request in time");
  tell(lock);
  Counters::add(session_->counters().deadlines_missed);
}

void HeldBlocks::tell(std::unique_lock<std::mutex>& lock) {
  changed_.notify_all();
  if (std::exchange(told_, true)) return;
  if (event_) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
  }
  const auto callback = std::exchange(callback_, {});
  lock.unlock();
  if (callback) callback();
}

bool HeldBlocks::lost() const {
  return why_.has_value() || (connection_ != nullptr && !connection_->alive());
}

bool HeldBlocks::due() const {
  return released_ || overdue_ || lost() || (!asked_ && unsettled_ == 0);
}

LeaseState HeldBlocks::state() const {
  {
    const std::lock_guard lock(mutex_);
    if (why_ || released_) return LeaseState::lost;
    if (asked_) return LeaseState::asked;
    if (unsettled_ != 0 && !lost()) return LeaseState::arriving;
  }
  return alive() ? LeaseState::settled : LeaseState::lost;
}

std::optional<Error> HeldBlocks::error() const {
  {
    const std::lock_guard lock(mutex_);
    if (why_) return why_;
    if (released_) return make_error(Errc::stale, "the lease was released");
    if (asked_) return {};
    if (!blocks_.empty() && lost())
      return make_error(Errc::stale, "the lease ended with its connection to kvtierd");
  }
  if (alive()) return {};
  return make_error(Errc::stale, "the lease ended: kvtierd did not hear from this client in time");
}

Result<int> HeldBlocks::event_fd() {
  const std::lock_guard lock(mutex_);
  if (!event_) {
    event_ = UniqueFd(::eventfd(due() ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event_) return errno_error(Errc::io, "cannot make an eventfd");
  }
  return event_.get();
}

void HeldBlocks::on_settled(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (released_) return;
    if (!due()) {
      callback_.swap(callback);
      return;
    }
  }
  callback();
}

void HeldBlocks::count_lookup(bool granted) const {
  if (looked_up_ == 0) return;
  Counters& counters = session_->counters();
  std::size_t misses = looked_up_;
  if (granted) {
    const auto tiers = sources();
    for (std::size_t i = 0; i < tiers.size(); ++i) {
      Counters::add(counters.hits[i], tiers[i]);
      misses -= tiers[i];
    }
  }
  Counters::add(counters.looked_up, looked_up_);
  Counters::add(counters.misses, misses);
}

std::uint32_t HeldBlocks::blocks() const {
  const std::lock_guard lock(mutex_);
  return why_ ? 0 : static_cast<std::uint32_t>(blocks_.size());
}

Tier HeldBlocks::source(std::uint32_t block) const {
  const std::lock_guard lock(mutex_);
  KVTIER_CHECK(block < blocks_.size());
  return blocks_[block].source;
}

std::array<std::uint32_t, kTiersWithRemote> HeldBlocks::sources() const {
  std::array<std::uint32_t, kTiersWithRemote> count{};
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
  const bool in_time = changed_.wait_until(
      lock, deadline, [&] { return released_ || lost() || (!asked_ && unsettled_ == 0); });
  if (!in_time) Counters::add(session_->counters().deadlines_missed);
  if (blocks_.empty() || released_ || why_) return 0;
  const std::uint32_t ready = leading_ready();
  const auto granted = static_cast<std::uint32_t>(blocks_.size());
  lock.unlock();
  note_usable(ready, granted);
  if (alive()) return ready;
  note_loss();
  return 0;
}

std::optional<Clock::time_point> HeldBlocks::settled_at() const {
  const std::lock_guard lock(mutex_);
  if (!asked_ && unsettled_ == 0 && !why_) return settled_at_;
  if (released_ || lost()) return Clock::now();
  return std::nullopt;
}

std::vector<HeldBlocks::Block> HeldBlocks::snapshot() const {
  const std::lock_guard lock(mutex_);
  return blocks_;
}

bool HeldBlocks::alive() const {
  const std::lock_guard lock(mutex_);
  if (why_) return false;
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
  std::function<void()> callback;  // its end is its owner's code
  std::unique_lock lock(mutex_);
  released_ = true;
  callback.swap(callback_);
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
  if (id_ == 0 || std::exchange(release_sent_, true)) return;
  const auto connection = connection_;
  const std::uint32_t usable = usable_;
  const bool all = usable >= blocks_.size();
  lock.unlock();
  session_->release(connection, id_, all ? std::nullopt : std::optional(usable));
}

FilledBlock HeldBlocks::filled(std::uint32_t block, ReservedSlot slot) const {
  const auto own = proof(block);
  FilledBlock filled{ns_, keys_[block], parent(block), position(block), {own.begin(), own.end()},
                     {}};
  filled.slots.push_back(std::move(slot));
  return filled;
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
