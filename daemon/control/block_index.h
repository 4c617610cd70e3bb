// The index: every cached block by its key, in memory that is reserved once.
//
// Entries live in one array and are named by their place in it, so that lists and tables are arrays of
// 32-bit numbers. The hash table is open addressing at a load of at most one half. All operations are
// constant time; none allocates after construction. Owned by the control thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "client/base/strong.h"
#include "kvtier/key.h"
#include "kvtier/tier.h"

namespace kvtier::daemon {

using BlockId = Strong<struct BlockTag, std::uint32_t>;
inline constexpr BlockId kNoBlock{0xFFFFFFFFU};

// Where a block lies in one tier: an extent or a segment, and a slot of it.
struct Place {
  std::uint32_t container = 0;
  std::uint32_t slot = 0;
  friend bool operator==(const Place&, const Place&) = default;
};

struct LruLink {
  BlockId newer = kNoBlock;
  BlockId older = kNoBlock;
};

struct Block {
  Key key;
  std::uint64_t last_access = 0;           // the cache's logical clock
  std::array<Place, kTiers> places{};      // valid where `tiers` has the tier
  std::array<LruLink, kTiers> lru{};       // linked while placed and not held
  std::array<std::uint16_t, kTiers> holds{};  // leases and I/O that need this placement
  std::uint16_t ns = 0;
  std::uint32_t block_index = 0;
  TierSet tiers{};
  bool loading = false;                    // a disk read is under way
  bool write_queued = false;               // waits for, or is in, write-through
  bool stamp_dirty = false;                // last_access not yet handed to the disk tier
  bool doomed = false;                     // found no more; goes with its last hold
};
static_assert(sizeof(Block) <= 96, "ten million of them must fit");

class BlockIndex {
 public:
  explicit BlockIndex(std::uint32_t blocks_max);

  // kNoBlock where there is none.
  BlockId find(const Key& key) const noexcept;
  // A fresh entry for `key`, which must not be there; kNoBlock when full.
  BlockId insert(const Key& key) noexcept;
  // `id` must be placed nowhere and held by nobody.
  void erase(BlockId id) noexcept;

  Block& operator[](BlockId id) noexcept { return blocks_[id.value]; }
  const Block& operator[](BlockId id) const noexcept { return blocks_[id.value]; }

  std::uint32_t size() const noexcept { return size_; }
  std::uint32_t capacity() const noexcept { return blocks_max_; }

  // Calls `visit(id)` for every block until it returns false.
  template <class Visit>
  void each(Visit&& visit) const {
    for (const std::uint32_t at : table_) {
      if (at != kNoBlock.value && !visit(BlockId(at))) return;
    }
  }

 private:
  std::uint32_t home(const Key& key) const noexcept {
    return static_cast<std::uint32_t>(key.tail()) & mask_;
  }

  std::uint32_t blocks_max_;
  std::uint32_t mask_;
  std::uint32_t size_ = 0;
  std::vector<Block> blocks_;           // grows up to blocks_max_, never moves
  std::vector<std::uint32_t> table_;    // entry numbers
  BlockId free_ = kNoBlock;             // erased entries, chained through lru[0].older
};

}  // namespace kvtier::daemon
