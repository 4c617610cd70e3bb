#include "daemon/events/event_publisher.h"

#include <poll.h>
#include <spdlog/spdlog.h>

#include <cstring>

#include "daemon/limits.h"

namespace kvtier::daemon::events {

namespace {

constexpr std::chrono::milliseconds kOpenAgain{2000};
constexpr std::chrono::milliseconds kAnswerAgain{5};

std::uint64_t microseconds_since_1970() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                        std::chrono::system_clock::now().time_since_epoch())
                                        .count());
}

template <class Entry>
Entry entry_from(std::span<const std::byte> bytes) {
  Entry entry;
  std::memcpy(&entry, bytes.data(), sizeof entry);
  return entry;
}

}  // namespace

EventPublisher::EventPublisher(const Config::Events& config, BlockCache& cache, Post post)
    : config_(config),
      post_(std::move(post)),
      queue_(config.queue_bytes),
      feed_(std::make_shared<EventFeed>(config, cache, queue_)),
      buffer_(microseconds_since_1970(), config.replay_bytes),
      answers_(buffer_, [this] { return snapshot(); }) {
  thread_ = std::thread([this] { run(); });
}

EventPublisher::~EventPublisher() {
  stopping_ = true;
  queue_.wake();
  thread_.join();
}

void EventPublisher::run() {
  BatchMaker first;
  first.cleared();
  publish(first.take());
  ask_for(&EventFeed::begin_walk);
  while (!stopping_) {
    const auto now = Clock::now();
    if (!sockets_ && now >= next_open_) open(now);
    take_entries();
    if (sockets_) answers_.turn(*sockets_, now);
    show_counts();
    heartbeat(now);
    if (!queue_.may_sleep()) continue;
    if (sockets_) {
      sockets_->wait(queue_.wake_fd(), patience(), answers_.takes_requests());
    } else {
      pollfd wake{queue_.wake_fd(), POLLIN, 0};
      (void)::poll(&wake, 1, static_cast<int>(patience().count()));
    }
    queue_.awake();
    // So that what comes together is one batch.
    if (!stopping_ && queue_.used() != 0) std::this_thread::sleep_for(limits::kEventGather);
  }
}

std::chrono::milliseconds EventPublisher::patience() const {
  if (!sockets_) return kOpenAgain;
  if (answers_.under_way()) return kAnswerAgain;
  return counts_.subscriptions != 0 ? limits::kEventHeartbeat : std::chrono::milliseconds(-1);
}

void EventPublisher::heartbeat(Clock::time_point now) {
  if (counts_.subscriptions != 0 && now - last_batch_ >= limits::kEventHeartbeat) publish({});
}

// The cache does not depend on it: what cannot be had now is tried again.
void EventPublisher::open(Clock::time_point now) {
  next_open_ = now + kOpenAgain;
  auto opened = EventSockets::open(config_);
  if (opened) {
    sockets_.emplace(std::move(*opened));
    counts_.listening = true;
    spdlog::info("events: published on {}", config_.endpoint);
  } else if (!std::exchange(told_of_failure_, true)) {
    spdlog::warn("{}; tried again every {} s", opened.error().message,
                 std::chrono::duration_cast<std::chrono::seconds>(kOpenAgain).count());
  }
}

void EventPublisher::take_entries() {
  std::vector<std::byte> entry;
  while (!stopping_ && queue_.pop(entry)) {
    take(entry);
    // A walk's end, or a queue that does not become empty.
    if (known_.changes() >= limits::kEventChangesMax) publish_changes();
  }
  publish_changes();
  if (!stopping_ && queue_.take_lost()) ask_for(&EventFeed::begin_walk);
}

void EventPublisher::take(std::span<const std::byte> entry) {
  switch (static_cast<EntryKind>(entry.front())) {
    case EntryKind::block:
      return known_.take(entry_from<BlockEntry>(entry), entry.subspan(sizeof(BlockEntry)));
    case EntryKind::space:
      return known_.take(entry_from<SpaceEntry>(entry), entry.subspan(sizeof(SpaceEntry)));
    case EntryKind::walk_begun:
      ++counts_.walks;
      return known_.begin_walk();
    case EntryKind::walk_goes_on:
      return ask_for(&EventFeed::walk_on);
    case EntryKind::walk_ended:
      return known_.end_walk();
  }
}

void EventPublisher::ask_for(void (EventFeed::*step)()) {
  post_([weak = std::weak_ptr<EventFeed>(feed_), step] {
    if (const auto feed = weak.lock()) (feed.get()->*step)();
  });
}

void EventPublisher::publish_changes() {
  while (!stopping_ && known_.changed()) {
    BatchMaker batch;
    known_.tell(batch);
    if (!batch.empty()) publish(batch.take());
  }
}

void EventPublisher::publish(std::vector<BlockEvent> events) {
  for (const BlockEvent& event : events) {
    if (event.kind == BlockEvent::Kind::stored) counts_.stored += event.keys.size();
    if (event.kind == BlockEvent::Kind::removed) counts_.removed += event.keys.size();
  }
  const Payload batch = encoded(events);
  if (sockets_) sockets_->publish(buffer_.next(), batch);
  buffer_.add(batch);
  last_batch_ = Clock::now();
  ++counts_.batches;
}

Payload EventPublisher::encoded(std::span<const BlockEvent> events) const {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return std::make_shared<const std::vector<std::uint8_t>>(
      encode_batch(now.count(), events, config_.block_hashes));
}

ReplayAnswers::Snapshot EventPublisher::snapshot() const {
  ReplayAnswers::Snapshot batches;
  BatchMaker first;
  first.cleared();
  known_.told(std::move(first),
              [&](const std::vector<BlockEvent>& events) { batches.push_back(encoded(events)); });
  return batches;
}

void EventPublisher::show_counts() {
  counts_.replayed = answers_.counts().batches;
  counts_.snapshots = answers_.counts().snapshots;
  counts_.kept_bytes = buffer_.bytes();
  if (sockets_) counts_.subscriptions = sockets_->subscriptions();
}

}  // namespace kvtier::daemon::events
