// The control thread's part of the events: hears from the catalogue where each block can be found,
// and puts that into the EventQueue.
//
// What it says is a state, never a step: "this block is in these tiers now". So nothing goes wrong
// by saying it twice, and after entries were lost (the queue was full) all of it is said once more,
// in steps that the other side asks for one by one (a walk), while what changes meanwhile is said
// as ever. Owned by the control thread; costs it some tens of nanoseconds a change.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/record/private_head.h"
#include "daemon/cache/block_cache.h"
#include "daemon/config/config.h"
#include "daemon/events/event_entry.h"
#include "daemon/events/event_queue.h"

namespace kvtier::daemon::events {

class EventFeed {
 public:
  // Both outlive this. From here on until the end it hears of the cache's blocks, but says nothing
  // before the first walk.
  EventFeed(const Config::Events& config, BlockCache& cache, EventQueue& queue);
  ~EventFeed();
  EventFeed(const EventFeed&) = delete;

  // All blocks are to be said once more.
  void begin_walk();
  // The next of them; with no more room than is left to changes, none.
  void walk_on();
  // About once a second: namespaces that were known by their id alone may be known by now.
  void tick();

  // Entries that found no room.
  std::uint64_t lost() const noexcept { return lost_entries_; }

 private:
  struct Told {
    std::uint64_t incarnation = ~0ULL;
    bool orphan = false;
    bool published = false;
    bool tokens = false;
  };
  const Told& told(std::uint16_t ns);
  bool may_publish(const KnownNamespace& known) const;
  void say(BlockId id, TierSet tiers);
  std::span<const std::byte> tokens_of(BlockId id, TierSet tiers);
  void push(std::initializer_list<std::span<const std::byte>> pieces);
  void push_walk(EntryKind kind);

  const Config::Events config_;
  std::vector<bool> has_tokens_;  // by a block's number: since the walk, or since it was there
  BlockCache& cache_;
  EventQueue& queue_;
  std::vector<Told> told_;  // by a namespace's number
  PrivateHead head_;        // kept for its memory
  bool silent_ = true;      // since entries were lost, until the next walk
  std::uint32_t at_ = 0;    // the number of the block that the walk comes to next
  std::uint64_t lost_entries_ = 0;
};

}  // namespace kvtier::daemon::events
