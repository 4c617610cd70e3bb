#include "client/session/slot_pool.h"

#include <iterator>

#include "client/session/limits.h"

namespace kvtier::session {

std::optional<ReservedSlot> SlotPool::take() {
  const std::lock_guard lock(mutex_);
  if (slots_.empty()) return {};
  ReservedSlot slot = std::move(slots_.front());
  slots_.pop_front();
  return slot;
}

void SlotPool::put_back(ReservedSlot slot) {
  const std::lock_guard lock(mutex_);
  if (slot.connection->alive()) slots_.push_front(std::move(slot));
}

bool SlotPool::expected() const {
  const std::lock_guard lock(mutex_);
  return expected_;
}

std::uint32_t SlotPool::claim(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const auto at_hand = static_cast<std::uint32_t>(slots_.size());
  if (expected_ || at_hand >= (ahead_ + 1) / 2 || now < not_before_) return 0;
  expected_ = true;
  return ahead_ - at_hand;
}

void SlotPool::expect() {
  const std::lock_guard lock(mutex_);
  expected_ = true;
}

void SlotPool::arrive(std::vector<ReservedSlot> slots, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  expected_ = false;
  if (slots.empty()) not_before_ = now + kSlotBackoff;
  std::move(slots.begin(), slots.end(), std::back_inserter(slots_));
}

void SlotPool::give_up() {
  const std::lock_guard lock(mutex_);
  expected_ = false;
}

std::vector<ReservedSlot> SlotPool::clear() {
  const std::lock_guard lock(mutex_);
  expected_ = false;
  not_before_ = {};
  std::vector<ReservedSlot> slots(std::make_move_iterator(slots_.begin()),
                                  std::make_move_iterator(slots_.end()));
  slots_.clear();
  return slots;
}

}  // namespace kvtier::session
