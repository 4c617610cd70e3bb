// Slots of one namespace and tier that the daemon has lent us ahead of need. The session thread
// fills it, the copy thread takes; it is empty the moment the connection ends. What lies idle is
// given back: when the daemon asks for it, when nobody has taken any for a while, and with the last
// user.
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
  std::optional<ReservedSlot> take(Clock::time_point now);
  // Gives back a slot that was taken and not used.
  void put_back(ReservedSlot slot);
  // Whether slots are on their way.
  bool expected() const;
  // Or may soon be: where ours were all that was due to us, there are others once they are blocks.
  bool hopeful(Clock::time_point now) const;
  // A slot that was taken has been filled, and will be committed.
  void filled(Clock::time_point now);

  // How many slots to ask the daemon for now, 0 for none; the asker must answer with arrive() or
  // give_up().
  std::uint32_t claim(Clock::time_point now);
  void expect();
  // None: the daemon has no room, and is left alone for kSlotBackoff.
  void arrive(std::vector<ReservedSlot> slots, Clock::time_point now);
  void give_up();
  // Commits have been sent: what was refused before may be had now. Whether something was.
  bool committed();
  // Empties the pool. The slots are the daemon's business again.
  std::vector<ReservedSlot> clear();
  // Takes out what is to be given back: all but the first `keep`; those in an extent; or, where no
  // slot was taken or came for kSlotsIdleMax, all but a part.
  std::vector<ReservedSlot> shed(std::size_t keep);
  std::vector<ReservedSlot> shed_extent(std::uint32_t extent);
  std::vector<ReservedSlot> shed_idle(Clock::time_point now);
  // Whether there will be something to shed if nobody takes any.
  bool has_surplus() const;

 private:
  std::vector<ReservedSlot> shed_behind(std::size_t keep);
  std::size_t kept_idle() const noexcept { return (ahead_ + 3) / 4; }

  const std::uint32_t ahead_;
  mutable std::mutex mutex_;
  std::deque<ReservedSlot> slots_;
  bool expected_ = false;
  Clock::time_point not_before_{};
  Clock::time_point last_use_{};
  Clock::time_point last_filled_{};
  std::uint32_t out_ = 0;  // taken, and neither filled nor put back
  std::uint64_t commits_ = 0, commits_at_claim_ = 0;
};

}  // namespace kvtier::session
