// Answers to subscribers that ask for what they missed, under way. Owned by the events' thread.
//
// Who asks from a number on whose batches are kept gets those. Who asks for older ones, or for what
// no daemon has numbered yet, gets a snapshot: all blocks as they have been told by now, behind an
// AllBlocksCleared, with the numbers that end with the last batch's. Each part goes out as its peer
// takes it; a peer that takes nothing for a while gets no more. Few answers are under way at a
// time, and fewer snapshots; who asks then waits.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/events/event_sockets.h"
#include "daemon/events/replay_buffer.h"

namespace kvtier::daemon::events {

class ReplayAnswers {
 public:
  using Clock = std::chrono::steady_clock;
  using Snapshot = std::vector<Payload>;
  struct Counts {
    std::uint64_t batches = 0;    // of answers, snapshots' too
    std::uint64_t snapshots = 0;  // begun
  };

  // `make`: the snapshot as of the last batch in `buffer`. Both outlive this.
  ReplayAnswers(const ReplayBuffer& buffer, std::function<Snapshot()> make)
      : buffer_(buffer), make_(std::move(make)) {}

  // Takes requests, and sends what peers take.
  void turn(EventSockets& sockets, Clock::time_point now);
  // Whether another request would be taken.
  bool takes_requests() const noexcept;
  bool under_way() const noexcept { return !answers_.empty() || waiting_.has_value(); }
  const Counts& counts() const noexcept { return counts_; }

 private:
  struct Answer {
    std::string peer;
    std::vector<std::pair<std::uint64_t, Payload>> batches;
    std::size_t sent = 0;
    Clock::time_point moved;
    std::shared_ptr<const Snapshot> snapshot;  // that it holds in memory
  };
  struct Made {
    std::weak_ptr<const Snapshot> snapshot;
    std::uint64_t next = 0;  // the number behind it
  };
  bool begin(const EventSockets::Request& request, Clock::time_point now);
  // And the number behind it.
  using Standing = std::pair<std::shared_ptr<const Snapshot>, std::uint64_t>;
  std::optional<Standing> snapshot_that_fits();
  // False: it is done with.
  bool go_on(Answer& answer, EventSockets& sockets, Clock::time_point now);

  const ReplayBuffer& buffer_;
  const std::function<Snapshot()> make_;
  std::list<Answer> answers_;
  std::vector<Made> made_;
  std::optional<EventSockets::Request> waiting_;  // for a snapshot's place
  Counts counts_;
};

}  // namespace kvtier::daemon::events
