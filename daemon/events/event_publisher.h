// Publishes what the daemon stores and removes, as vLLM's KV events (docs/events.md).
//
// It has a thread of its own, which owns the sockets, the picture of what has been told
// (KnownBlocks) and the batches that are kept for replays. The control thread puts what happens
// into a queue that never makes it wait (EventFeed). Where that was full, the difference is found
// by a walk over all blocks, and told as any other change.
//
// A subscriber tells by the numbers that it missed something. So that it does so even where nothing
// else happens any more, an empty batch follows every second in which none was published.
//
// Batches are numbered from the microseconds since 1970 at the start: a later daemon's numbers are
// larger, so that to a subscriber a restart is a gap like any other.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "daemon/events/event_counts.h"
#include "daemon/events/event_feed.h"
#include "daemon/events/event_queue.h"
#include "daemon/events/event_sockets.h"
#include "daemon/events/known_blocks.h"
#include "daemon/events/replay_answers.h"
#include "daemon/events/replay_buffer.h"

namespace kvtier::daemon::events {

class EventPublisher {
 public:
  using Post = std::function<void(std::function<void()>)>;
  // On the control thread, once the cache has been recovered. `post`: to the control thread.
  EventPublisher(const Config::Events& config, BlockCache& cache, Post post);
  // On the control thread. What is still in the queue is not published.
  ~EventPublisher();
  EventPublisher(const EventPublisher&) = delete;

  // About once a second.
  void tick() { feed_->tick(); }

  // ---- for the control thread to show

  const EventCounts& counts() const noexcept { return counts_; }
  std::uint64_t lost() const noexcept { return feed_->lost(); }
  std::uint64_t queued_bytes() const noexcept { return queue_.used(); }
  std::uint64_t queue_bytes_max() const noexcept { return queue_.size(); }

 private:
  using Clock = std::chrono::steady_clock;
  void run();
  void open(Clock::time_point now);
  std::chrono::milliseconds patience() const;
  void heartbeat(Clock::time_point now);
  void take_entries();
  void take(std::span<const std::byte> entry);
  void ask_for(void (EventFeed::*step)());
  void publish_changes();
  void publish(std::vector<BlockEvent> events);
  Payload encoded(std::span<const BlockEvent> events) const;
  ReplayAnswers::Snapshot snapshot() const;
  void show_counts();

  const Config::Events config_;
  const Post post_;
  EventQueue queue_;
  std::shared_ptr<EventFeed> feed_;  // the control thread's
  EventCounts counts_;
  std::atomic<bool> stopping_{false};

  // The thread's.
  KnownBlocks known_;
  ReplayBuffer buffer_;
  ReplayAnswers answers_;
  std::optional<EventSockets> sockets_;
  Clock::time_point next_open_{}, last_batch_{};
  bool told_of_failure_ = false;
  std::thread thread_;
};

}  // namespace kvtier::daemon::events
