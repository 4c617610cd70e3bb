// What the control thread tells the events' thread, in order: a ring of bytes of a fixed size
// between one thread that puts entries in and one that takes them out.
//
// The control thread never waits for it: an entry that finds no room is not put in, which lose()
// then says to the other side. It makes a system call only where the other side sleeps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "core/base/fd.h"

namespace kvtier::daemon::events {

class EventQueue {
 public:
  explicit EventQueue(std::size_t bytes);

  // ---- the control thread's side

  // One entry, its pieces one after the other: all of it, or nothing. False: there is no room.
  bool push(std::initializer_list<std::span<const std::byte>> pieces);
  // Entries are missing from here on.
  void lose();
  std::size_t room() const noexcept { return ring_.size() - used(); }
  std::size_t size() const noexcept { return ring_.size(); }

  // ---- the other side's

  // The next entry. False: there is none.
  bool pop(std::vector<std::byte>& entry);
  // Whether entries have been lost since this was last asked. Those that were lost come behind what
  // could be taken out before.
  bool take_lost() noexcept { return lost_.exchange(false); }
  // Before the thread sleeps until wake_fd() can be read. False: there is something to do.
  bool may_sleep() noexcept;
  void awake() noexcept;
  int wake_fd() const noexcept { return wake_.get(); }
  // Any thread: the other side is not to sleep.
  void wake() noexcept;

  // Any thread.
  std::size_t used() const noexcept {
    return static_cast<std::size_t>(written_.load(std::memory_order_acquire) -
                                    read_.load(std::memory_order_acquire));
  }

 private:
  void put(std::uint64_t at, std::span<const std::byte> bytes) noexcept;
  void get(std::uint64_t at, std::span<std::byte> bytes) const noexcept;
  void wake_if_asleep() noexcept;

  std::vector<std::byte> ring_;
  UniqueFd wake_;
  std::atomic<std::uint64_t> written_{0}, read_{0};  // bytes, since the start
  std::atomic<bool> lost_{false};
  std::atomic<bool> asleep_{false};
};

}  // namespace kvtier::daemon::events
