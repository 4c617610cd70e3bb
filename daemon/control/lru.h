// The eviction order of one tier and size class: blocks that are placed there and that nobody holds, from
// the newest to the oldest, linked through the index's entries.
//
// A block stands on the older side of its ancestors in the list, so that the tail of a prefix goes before
// its head: a touch moves a whole prefix to the front, last block first, and a new block is put right behind
// its parent. One whose parent is held or not there at that moment becomes the newest instead, until the
// next touch of its prefix, at the latest the end of the lease that holds the parent. (A parent held by its
// write alone has no such lease; a child behind it that is not written may then stay too new.)
#pragma once

#include "daemon/control/block_index.h"

namespace kvtier::daemon {

class LruList {
 public:
  LruList(BlockIndex& blocks, Tier tier) noexcept : blocks_(&blocks), tier_(tier) {}

  bool empty() const noexcept { return oldest_ == kNoBlock; }
  BlockId oldest() const noexcept { return oldest_; }
  std::uint32_t size() const noexcept { return size_; }

  void push_newest(BlockId id) noexcept {
    insert(id, kNoBlock, newest_);
  }
  // Right behind `parent`, which must be in this list.
  void push_behind(BlockId parent, BlockId id) noexcept { insert(id, parent, link(parent).older); }

  void remove(BlockId id) noexcept {
    LruLink& at = link(id);
    (at.newer == kNoBlock ? newest_ : link(at.newer).older) = at.older;
    (at.older == kNoBlock ? oldest_ : link(at.older).newer) = at.newer;
    at = {};
    --size_;
  }

 private:
  LruLink& link(BlockId id) noexcept { return (*blocks_)[id].lru[index_of(tier_)]; }

  void insert(BlockId id, BlockId newer, BlockId older) noexcept {
    link(id) = {newer, older};
    (newer == kNoBlock ? newest_ : link(newer).older) = id;
    (older == kNoBlock ? oldest_ : link(older).newer) = id;
    ++size_;
  }

  BlockIndex* blocks_;
  Tier tier_;
  BlockId newest_ = kNoBlock;
  BlockId oldest_ = kNoBlock;
  std::uint32_t size_ = 0;
};

}  // namespace kvtier::daemon
