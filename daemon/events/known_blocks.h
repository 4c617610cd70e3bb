// The events' thread's own picture of the index: what it has heard of every block, and what it has
// told subscribers of it. What differs is what events are made of. Owned by that thread; about 100
// bytes a block, and its tokens.
//
// A walk (EventFeed) leaves what has been told as it is until it ends; then the difference is told,
// so that a subscriber does not notice that entries were lost.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/record/key_hash.h"
#include "daemon/events/block_event.h"
#include "daemon/events/event_entry.h"

namespace kvtier::daemon::events {

class KnownBlocks {
 public:
  // Takes one entry of the EventQueue that is of a block or a namespace.
  void take(const BlockEntry& entry, std::span<const std::byte> tokens);
  void take(const SpaceEntry& entry, std::span<const std::byte> texts);
  void begin_walk();
  void end_walk();

  // How many blocks there is something to tell of, at most; during a walk none.
  std::size_t changes() const noexcept { return walking_ ? 0 : changes_.size() - next_change_; }
  bool changed() const noexcept { return changes() != 0; }
  // Puts changes into the batch until it is full or there are none left.
  void tell(BatchMaker& batch);

  // All that has been told, parents before children: calls `visit(batch)` with every full batch and
  // with the last, if it is not empty.
  template <class Visit>
  void told(BatchMaker first, Visit&& visit) const {
    BatchMaker batch = std::move(first);
    const auto in_order = by_prefix([](const Known& known) { return !known.told.empty(); });
    for (const Tier tier : kAllTiersWithRemote) {
      for (const auto* at : in_order) {
        if (!at->second.told.has(tier)) continue;
        put_stored(batch, tier, at->first, at->second);
        if (batch.full()) visit(batch.take());
      }
    }
    if (!batch.empty()) visit(batch.take());
  }
  std::size_t size() const noexcept { return known_.size(); }

 private:
  struct Known {
    Key parent;
    SpaceRef space;
    std::unique_ptr<Token[]> tokens;
    std::uint32_t block_index = 0;
    std::uint32_t walk = 0;  // the last one that it was heard of in
    TierSet now{}, told{};
    bool listed = false;      // among the changes
    bool told_plain = false;  // without tokens
  };
  using Blocks = std::unordered_map<Key, Known, KeyHash>;
  using At = const Blocks::value_type*;

  template <class Which>
  std::vector<At> by_prefix(Which&& which) const {
    std::vector<At> chosen;
    for (const auto& block : known_) {
      if (which(block.second)) chosen.push_back(&block);
    }
    return in_prefix_order(std::move(chosen));
  }
  static std::vector<At> in_prefix_order(std::vector<At> blocks);
  static void put_stored(BatchMaker& batch, Tier tier, const Key& key, const Known& known);
  static bool differs(const Known& known) noexcept;
  void list(Blocks::iterator at);

  Blocks known_;
  std::map<std::uint16_t, SpaceRef> spaces_;
  std::vector<Key> changes_;  // of blocks that differ from what is told, in order
  std::size_t next_change_ = 0;
  std::uint32_t walk_ = 0;
  bool walking_ = false;
};

}  // namespace kvtier::daemon::events
