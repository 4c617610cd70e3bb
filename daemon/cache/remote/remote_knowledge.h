// Which blocks are known to be in the remote tier: those that a lookup found, and those that this
// host wrote. They may have expired there since; a read that does not find one ends the knowledge
// of it. Owned by the control thread.
//
// Entries of the index that are nowhere else are bounded; those that came first go. While the store
// cannot be asked they are hidden, not forgotten. What the configuration keeps on this host, what
// was invalidated and what was erased is never looked for.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "daemon/cache/catalogue/catalogue.h"
#include "daemon/cache/remote/remote_bars.h"
#include "daemon/cache/remote/remote_counts.h"
#include "daemon/cache/remote/remote_options.h"
#include "daemon/cache/tiers/later.h"
#include "storage/remote/remote_store.h"

namespace kvtier::daemon {

class RemoteKnowledge {
 public:
  // All outlive this; `later` may be set after this has been made.
  RemoteKnowledge(const RemoteTierOptions& options, Catalogue& catalogue, const Later& later,
                  RemoteCounts& counts) noexcept
      : options_(options), catalogue_(catalogue), later_(later), counts_(counts) {}
  RemoteKnowledge(const RemoteKnowledge&) = delete;

  storage::RemoteState state() const noexcept { return state_; }
  bool readable() const noexcept { return state_ != storage::RemoteState::offline; }
  bool writable() const noexcept { return state_ == storage::RemoteState::online; }
  void set_state(storage::RemoteState state);

  // Whether blocks of the namespace may be there, and whether they may be looked for.
  bool may_have(std::uint16_t ns) const noexcept;
  bool may_look_for(std::uint16_t ns) const noexcept;
  RemoteBars& bars() noexcept { return bars_; }

  // Where a prefix goes on: the key before, and the number of the next block.
  struct After {
    Key parent;
    std::uint32_t block_index = 0;
  };
  // These follow one another there. Makes entries of those that have none, up to the first for
  // which there is no room.
  void learn(std::uint16_t ns, const After& after, std::span<const Key> keys);
  // This host has written it.
  void wrote(BlockId id);
  // It is there no more, or is not to be found: the entry goes with it if it is nowhere else; one
  // that is on its way from there goes when its read has ended.
  void forget(BlockId id);
  // About once a second.
  void trim();

  // The index is full: makes room for one entry for the tenant's sake. False where there is none.
  std::function<bool(TenantId)> make_entry;

 private:
  BlockId entry(std::uint16_t ns, const Key& key, const After& after);
  bool drop_oldest();
  void republish_from(std::uint32_t number, std::uint64_t change);

  const RemoteTierOptions& options_;
  Catalogue& catalogue_;
  const Later& later_;
  RemoteCounts& counts_;
  RemoteBars bars_;
  storage::RemoteState state_ = storage::RemoteState::offline;
};

}  // namespace kvtier::daemon
