// Slots of one namespace and tier that the daemon reserved for us ahead of need. The session thread
// fills it, the copy thread takes; it is empty the moment the connection ends.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "client/session/connection.h"
#include "client/session/extent_mapping.h"

namespace kvtier::session {

struct ReservedSlot {
  SlotRef ref;
  std::shared_ptr<const Connection> connection;  // void once this has ended
  // Kept for as long as somebody may write to the slot: the daemon has it back when all that were
  // granted with it are gone (Session).
  std::shared_ptr<const void> right;
};

class SlotPool {
 public:
  explicit SlotPool(std::uint32_t ahead) : ahead_(ahead) {}

  // The one that came first: blocks written one after the other then lie side by side as far as the
  // daemon's slots do, and a copy engine takes them at once.
  std::optional<ReservedSlot> take();
  // Gives back a slot that was taken and not used.
  void put_back(ReservedSlot slot);
  // Whether slots are on their way.
  bool expected() const;

  // How many slots to ask the daemon for now, 0 for none; the asker must answer with arrive() or
  // give_up().
  std::uint32_t claim(Clock::time_point now);
  void expect();
  // None: the daemon has no room, and is left alone for kSlotBackoff.
  void arrive(std::vector<ReservedSlot> slots, Clock::time_point now);
  void give_up();
  // Empties the pool. The slots are the daemon's business again.
  std::vector<ReservedSlot> clear();

 private:
  const std::uint32_t ahead_;
  mutable std::mutex mutex_;
  std::deque<ReservedSlot> slots_;
  bool expected_ = false;
  Clock::time_point not_before_{};
};

}  // namespace kvtier::session
