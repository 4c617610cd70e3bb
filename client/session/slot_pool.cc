#include "client/session/slot_pool.h"

#include <iterator>
#include <utility>

#include "client/session/limits.h"

namespace kvtier::session {

std::optional<ReservedSlot> SlotPool::take(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  last_use_ = now;
  if (slots_.empty()) return {};
  ReservedSlot slot = std::move(slots_.front());
  slots_.pop_front();
  ++out_;
  return slot;
}

void SlotPool::put_back(ReservedSlot slot) {
  const std::lock_guard lock(mutex_);
  if (out_ > 0) --out_;
  if (slot.connection->alive()) slots_.push_front(std::move(slot));
}

void SlotPool::filled(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (out_ > 0) --out_;
  last_filled_ = now;
}

bool SlotPool::expected() const {
  const std::lock_guard lock(mutex_);
  return expected_;
}

bool SlotPool::hopeful(Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  return expected_ || out_ > 0 || now - last_filled_ < kSlotLinger;
}

std::uint32_t SlotPool::claim(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const auto at_hand = static_cast<std::uint32_t>(slots_.size());
  if (expected_ || at_hand >= (ahead_ + 1) / 2 || now < not_before_) return 0;
  expected_ = true;
  commits_at_claim_ = commits_;
  return ahead_ - at_hand;
}

void SlotPool::expect() {
  const std::lock_guard lock(mutex_);
  expected_ = true;
}

void SlotPool::arrive(std::vector<ReservedSlot> slots, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  expected_ = false;
  last_use_ = now;
  // What was committed since it was asked may have made room.
  if (slots.empty() && commits_ == commits_at_claim_) not_before_ = now + kSlotBackoff;
  std::move(slots.begin(), slots.end(), std::back_inserter(slots_));
}

void SlotPool::give_up() {
  const std::lock_guard lock(mutex_);
  expected_ = false;
}

bool SlotPool::committed() {
  const std::lock_guard lock(mutex_);
  ++commits_;
  return std::exchange(not_before_, {}) != Clock::time_point{};
}

std::vector<ReservedSlot> SlotPool::shed_behind(std::size_t keep) {
  std::vector<ReservedSlot> gone;
  while (slots_.size() > keep) {
    gone.push_back(std::move(slots_.back()));
    slots_.pop_back();
  }
  return gone;
}

std::vector<ReservedSlot> SlotPool::shed(std::size_t keep) {
  const std::lock_guard lock(mutex_);
  return shed_behind(keep);
}

std::vector<ReservedSlot> SlotPool::shed_extent(std::uint32_t extent) {
  const std::lock_guard lock(mutex_);
  std::vector<ReservedSlot> gone;
  std::deque<ReservedSlot> stay;
  for (ReservedSlot& slot : slots_) {
    if (slot.ref.name >> 32 == extent) {
      gone.push_back(std::move(slot));
    } else {
      stay.push_back(std::move(slot));
    }
  }
  slots_ = std::move(stay);
  return gone;
}

std::vector<ReservedSlot> SlotPool::shed_idle(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (now - last_use_ < kSlotsIdleMax) return {};
  return shed_behind(kept_idle());
}

bool SlotPool::has_surplus() const {
  const std::lock_guard lock(mutex_);
  return slots_.size() > kept_idle();
}

std::vector<ReservedSlot> SlotPool::clear() {
  const std::lock_guard lock(mutex_);
  expected_ = false;
  not_before_ = {};
  out_ = 0;
  std::vector<ReservedSlot> slots(std::make_move_iterator(slots_.begin()),
                                  std::make_move_iterator(slots_.end()));
  slots_.clear();
  return slots;
}

}  // namespace kvtier::session
