// The index: every cached block by its key, in memory that is reserved once.
//
// Entries are one cache line each and are named by their place in an array, so that lists and
// tables are arrays of small numbers. The hash table is the directory, which has enough of the key
// that probing and removal read no entry but the one looked for. All operations are constant time;
// none allocates after construction. What limits them at millions of blocks is the latency of
// memory, so whoever knows many keys beforehand prefetches or asks for all at once. Owned by the
// control thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/base/huge_array.h"
#include "core/base/prefetch.h"
#include "core/base/strong.h"
#include "core/wire/directory.h"
#include "daemon/cache/catalogue/rank.h"
#include "daemon/cache/policy/use_class.h"
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

// A block's place in the eviction order of one tier. Kept outside the entries: a walk along a list,
// or a touch of a prefix, then reads eight bytes a block. All zero where it is in none, as memory
// is that was never used: a tier that a block has never been in costs it nothing.
class LinkedId {
 public:
  constexpr LinkedId() = default;
  constexpr LinkedId(BlockId id) noexcept : bits_(id.value + kFirst) {}
  constexpr operator BlockId() const noexcept { return BlockId(bits_ - kFirst); }
  constexpr bool is_linked() const noexcept { return bits_ != 0; }

 private:
  static constexpr std::uint32_t kFirst = 2;  // kNoBlock, at the list's end, is 1
  std::uint32_t bits_ = 0;
};
struct LruLink {
  LinkedId newer, older;
};

struct alignas(64) Block {
  Key key;
  std::uint64_t last_access = 0;              // the cache's logical clock
  std::array<Place, kTiers> places{};         // valid where `tiers` has the tier
  std::array<std::uint16_t, kTiers> holds{};  // leases and I/O that need this placement
  std::uint16_t ns = 0;
  std::uint32_t block_index = 0;
  TierSet tiers{};                // the remote one too, where it has no place of its own
  TierSet pinned{};               // placements that an administrator holds, one of `holds` each
  bool loading : 1 = false;       // a disk read is under way
  bool write_queued : 1 = false;  // waits for, or is in, write-through
  bool stamp_dirty : 1 = false;   // last_access not yet handed to the disk tier
  bool doomed : 1 = false;        // found no more; goes with its last hold
  bool forked : 1 = false;        // used by one prefix while another that has it too was not
  std::uint8_t device_rank : 3 = static_cast<std::uint8_t>(Rank::normal);
  std::uint8_t spoilt_bits : 3 = 0;
  std::uint8_t host_rank : 3 = static_cast<std::uint8_t>(Rank::normal);
  bool shared : 1 = false;    // more than one user has used it
  bool left_out : 1 = false;  // in the host tier, and was to go to disk but did not

  // Of one that is doomed for their sake alone: its placements that do not hold. With the last of
  // them gone it is found again where else it is. Else none.
  TierSet spoilt() const noexcept { return {spoilt_bits}; }
  void set_spoilt(TierSet in) noexcept { spoilt_bits = in.bits & 7U; }
  // Of where it is placed; what is on disk is all of one rank.
  Rank rank(Tier tier) const noexcept {
    if (tier == Tier::disk) return Rank::normal;
    return static_cast<Rank>(tier == Tier::device ? device_rank : host_rank);
  }
  void set_rank(Tier tier, Rank rank) noexcept {
    const auto bits = static_cast<std::uint8_t>(rank);
    if (tier == Tier::device) device_rank = bits & 7U;
    if (tier == Tier::host) host_rank = bits & 7U;
  }
};
static_assert(kRanks <= 8);
static_assert(sizeof(Block) == 64, "one cache line, and ten million of them must fit");

class BlockIndex {
 public:
  // `directory` is empty, has room for as many blocks and outlives the index.
  BlockIndex(std::uint32_t blocks_max, DirectoryWriter& directory);

  // kNoBlock where there is none.
  BlockId find(const Key& key) const noexcept;
  // The same for many, with the misses of memory overlapped. ids.size() == keys.size(). `before`:
  // the block before the first of them in its prefix, or kNoBlock.
  void find_many(std::span<const Key> keys, std::span<BlockId> ids, BlockId before) const noexcept;
  // Asks the processor to load what find(key) and insert(key) read first, for many at once (see
  // DirectoryView::prefetch).
  void prefetch(std::span<const Key> keys) const noexcept { directory_.prefetch(keys); }
  // A fresh entry for `key`, which must not be there and comes after `parent` in its prefix;
  // kNoBlock when full.
  BlockId insert(const Key& key, const Key& parent) noexcept;
  // `id` must be placed nowhere and held by nobody.
  void erase(BlockId id) noexcept;
  // What clients are told of an entry.
  void publish(BlockId id, TierSet tiers, std::uint32_t device) noexcept {
    directory_.set(blocks_[id.value].key, id.value, tiers, device);
  }

  Block& operator[](BlockId id) noexcept { return blocks_[id.value]; }
  const Block& operator[](BlockId id) const noexcept { return blocks_[id.value]; }
  LruLink& link(BlockId id, Tier tier) noexcept { return links_[index_of(tier)][id.value]; }
  const LruLink& link(BlockId id, Tier tier) const noexcept {
    return links_[index_of(tier)][id.value];
  }

  // Whether the block is in an eviction order of this tier.
  bool is_listed(BlockId id, Tier tier) const noexcept { return link(id, tier).newer.is_linked(); }

  // Who used the block last, as a number that is never 0; 0: nobody since it was there.
  std::uint32_t user(BlockId id) const noexcept { return users_[id.value]; }
  void set_user(BlockId id, std::uint32_t user) noexcept { users_[id.value] = user; }

  // What that use says of the next one. Memory is given where marks are set alone, and a new entry
  // has the one of whoever had its number: whoever sets any sets all.
  PackedMark mark(BlockId id) const noexcept { return marks_[id.value]; }
  UseClass use_class(BlockId id) const noexcept { return marks_[id.value].use(); }
  void set_mark(BlockId id, PackedMark mark) noexcept { marks_[id.value] = mark; }
  void prefetch_mark(BlockId id) const noexcept { prefetch_memory(&marks_[id.value]); }

  // The key before this one in its prefix; zero for a prefix's first block.
  const Key& parent(BlockId id) const noexcept { return parents_[id.value]; }

  std::uint32_t size() const noexcept { return size_; }
  std::uint32_t capacity() const noexcept { return blocks_max_; }

  // Entries ever used: blocks are numbered below it. One that is placed nowhere is no block.
  std::uint32_t used() const noexcept { return used_; }

  // Calls `visit(id)` for every block that is placed somewhere until it returns false.
  template <class Visit>
  void each(Visit&& visit) const {
    for (std::uint32_t at = 0; at < used_; ++at) {
      if (!blocks_[at].tiers.empty() && !visit(BlockId(at))) return;
    }
  }

  // Gives the memory of so many entries, from this one on, and of their links in a tier. On any
  // thread: entries are used in the order of their numbers, so a restart has it done ahead.
  void populate(std::uint32_t first, std::uint32_t count, Tier tier) const noexcept {
    blocks_.populate(first, count);
    parents_.populate(first, count);
    links_[index_of(tier)].populate(first, count);
  }

 private:
  void prefetch_entry(const Key& key) const noexcept;
  std::size_t find_neighbours(std::span<const Key> keys, std::span<BlockId> ids,
                              BlockId before) const noexcept;
  void find_in_table(std::span<const Key> keys, std::span<BlockId> ids) const noexcept;

  std::uint32_t blocks_max_;
  DirectoryWriter& directory_;
  std::uint32_t size_ = 0;
  std::uint32_t used_ = 0;  // the first so many of the array
  HugeArray<Block> blocks_;
  HugeArray<Key> parents_;  // outside the entries: only admin commands ask
  HugeArray<std::uint32_t> users_;
  HugeArray<PackedMark> marks_;
  std::array<HugeArray<LruLink>, kTiersWithRemote> links_;
  BlockId free_ = kNoBlock;  // erased entries, chained through block_index
};

}  // namespace kvtier::daemon
