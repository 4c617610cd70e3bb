// The eviction order of one tier and size class: blocks that are placed there and that nobody
// holds, from the newest to the oldest, linked by the numbers of the index's entries.
//
// A block stands on the older side of its ancestors in the list, so that the tail of a prefix goes
// before its head: a touch moves a whole prefix to the front, last block first, and a new block is
// put right behind its parent. One whose parent is held or not there at that moment becomes the
// newest instead, until the next touch of its prefix, at the latest the end of the lease that holds
// the parent. (A parent held by its write alone has no such lease; a child behind it that is not
// written may then stay too new. So may a block whose pin ends before its parent's.)
#pragma once

#include <span>

#include "core/base/prefetch.h"
#include "daemon/cache/catalogue/block_index.h"

namespace kvtier::daemon {

class LruList {
 public:
  LruList(BlockIndex& blocks, Tier tier) noexcept : blocks_(&blocks), tier_(tier) {}

  bool empty() const noexcept { return oldest_ == kNoBlock; }
  BlockId oldest() const noexcept { return oldest_; }
  BlockId newest() const noexcept { return newest_; }
  // Next to a block that is in this list; kNoBlock where it is the newest.
  BlockId newer(BlockId id) const noexcept { return link(id).newer; }
  std::uint32_t size() const noexcept { return size_; }
  // Of a block that is in this list or in none of this tier.
  bool contains(BlockId id) const noexcept { return blocks_->is_listed(id, tier_); }

  void push_newest(BlockId id) noexcept { insert(id, kNoBlock, newest_); }
  void push_oldest(BlockId id) noexcept { insert(id, oldest_, kNoBlock); }
  // Right behind `parent`, which must be in this list.
  void push_behind(BlockId parent, BlockId id) noexcept { insert(id, parent, link(parent).older); }

  // Blocks that stand side by side in this list, from `newest` to `oldest`. The blocks of a prefix
  // mostly do, and are moved as one.
  struct Run {
    BlockId newest = kNoBlock;
    BlockId oldest = kNoBlock;
    std::uint32_t blocks = 0;
  };
  // Takes a run out; to be pushed into a list of the same tier before anything else happens.
  void cut(const Run& run) noexcept {
    const BlockId newer = link(run.newest).newer, older = link(run.oldest).older;
    set_older(newer, older);
    set_newer(older, newer);
    size_ -= run.blocks;
  }
  // The same for good: of a run's blocks, the newest first.
  void remove(std::span<const BlockId> run) noexcept {
    cut({run.front(), run.back(), static_cast<std::uint32_t>(run.size())});
    for (const BlockId id : run) link(id) = {};
  }
  // Blocks that are in no list become a run, the first the newest of all.
  void push_newest(std::span<const BlockId> run) noexcept {
    constexpr std::size_t kAhead = 16;
    BlockId newer = kNoBlock;
    for (std::size_t i = 0; i < run.size(); ++i) {
      if (i + kAhead < run.size()) prefetch(run[i + kAhead]);
      link(run[i]) = {newer, i + 1 < run.size() ? run[i + 1] : kNoBlock};
      newer = run[i];
    }
    push_newest(Run{run.front(), run.back(), static_cast<std::uint32_t>(run.size())});
  }
  void push_newest(const Run& run) noexcept {
    link(run.newest).newer = kNoBlock;
    link(run.oldest).older = newest_;
    set_newer(newest_, run.oldest);
    newest_ = run.newest;
    size_ += run.blocks;
  }

  // Of whoever moves many blocks: their links are asked for, and those of their neighbours once
  // they have come.
  void prefetch(BlockId id) const noexcept { prefetch_memory(&link(id)); }
  void prefetch_neighbours(BlockId id) const noexcept {
    const LruLink& at = link(id);
    // A prefetch of nothing that is there is harmless.
    prefetch_memory(&link(at.newer));
    prefetch_memory(&link(at.older));
  }

 private:
  LruLink& link(BlockId id) const noexcept { return blocks_->link(id, tier_); }

  void insert(BlockId id, BlockId newer, BlockId older) noexcept {
    link(id) = {newer, older};
    set_older(newer, id);
    set_newer(older, id);
    ++size_;
  }
  // What stands on either side of a block, or at the list's end.
  void set_older(BlockId of, BlockId older) noexcept {
    if (of == kNoBlock) {
      newest_ = older;
    } else {
      link(of).older = older;
    }
  }
  void set_newer(BlockId of, BlockId newer) noexcept {
    if (of == kNoBlock) {
      oldest_ = newer;
    } else {
      link(of).newer = newer;
    }
  }

  BlockIndex* blocks_;
  Tier tier_;
  BlockId newest_ = kNoBlock;
  BlockId oldest_ = kNoBlock;
  std::uint32_t size_ = 0;
};

}  // namespace kvtier::daemon
