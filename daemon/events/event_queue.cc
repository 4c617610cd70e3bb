#include "daemon/events/event_queue.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>

#include "core/base/check.h"

namespace kvtier::daemon::events {

namespace {

using Length = std::uint32_t;

}  // namespace

EventQueue::EventQueue(std::size_t bytes)
    : ring_(bytes), wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  KVTIER_CHECK(wake_.get() >= 0);
}

bool EventQueue::push(std::initializer_list<std::span<const std::byte>> pieces) {
  Length length = 0;
  for (const auto piece : pieces) length += static_cast<Length>(piece.size());
  if (room() < sizeof length + length) return false;
  std::uint64_t at = written_.load(std::memory_order_relaxed);
  put(at, std::as_bytes(std::span(&length, 1)));
  at += sizeof length;
  for (const auto piece : pieces) {
    put(at, piece);
    at += piece.size();
  }
  // In one order with the other side's going to sleep: one of the two sees the other.
  written_.store(at, std::memory_order_seq_cst);
  wake_if_asleep();
  return true;
}

void EventQueue::lose() {
  lost_.store(true, std::memory_order_seq_cst);
  wake_if_asleep();
}

bool EventQueue::pop(std::vector<std::byte>& entry) {
  const std::uint64_t at = read_.load(std::memory_order_relaxed);
  if (written_.load(std::memory_order_acquire) == at) return false;
  Length length = 0;
  get(at, std::as_writable_bytes(std::span(&length, 1)));
  entry.resize(length);
  get(at + sizeof length, entry);
  read_.store(at + sizeof length + length, std::memory_order_release);
  return true;
}

bool EventQueue::may_sleep() noexcept {
  asleep_.store(true, std::memory_order_seq_cst);
  if (used() == 0 && !lost_.load(std::memory_order_seq_cst)) return true;
  asleep_.store(false);
  return false;
}

void EventQueue::awake() noexcept {
  asleep_.store(false);
  std::uint64_t count = 0;
  (void)!::read(wake_.get(), &count, sizeof count);
}

void EventQueue::wake() noexcept {
  constexpr std::uint64_t kOne = 1;
  (void)!::write(wake_.get(), &kOne, sizeof kOne);
}

void EventQueue::wake_if_asleep() noexcept {
  if (asleep_.load(std::memory_order_seq_cst) && asleep_.exchange(false)) wake();
}

void EventQueue::put(std::uint64_t at, std::span<const std::byte> bytes) noexcept {
  if (bytes.empty()) return;
  const auto begin = static_cast<std::size_t>(at % ring_.size());
  const std::size_t first = std::min(bytes.size(), ring_.size() - begin);
  std::memcpy(ring_.data() + begin, bytes.data(), first);
  if (first < bytes.size()) std::memcpy(ring_.data(), bytes.data() + first, bytes.size() - first);
}

void EventQueue::get(std::uint64_t at, std::span<std::byte> bytes) const noexcept {
  if (bytes.empty()) return;
  const auto begin = static_cast<std::size_t>(at % ring_.size());
  const std::size_t first = std::min(bytes.size(), ring_.size() - begin);
  std::memcpy(bytes.data(), ring_.data() + begin, first);
  if (first < bytes.size()) std::memcpy(bytes.data() + first, ring_.data(), bytes.size() - first);
}

}  // namespace kvtier::daemon::events
