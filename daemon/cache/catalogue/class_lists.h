// The eviction order of the blocks of one device, size, tenant and rank in one tier: a list for
// each class of use, each from the newest to the oldest. By the policy `lru` all blocks are of one
// class, and it is one list.
//
// What holds of a list (LruList) holds of each. Over all lists, the order by last use is that of
// the stamps, and of blocks that were used at once the last of its prefix is the oldest.
#pragma once

#include <bit>
#include <compare>
#include <cstdint>
#include <utility>
#include <vector>

#include "daemon/cache/catalogue/lru.h"
#include "daemon/config/tenants.h"

namespace kvtier::daemon {

// One eviction order: of a device (a disk or a GPU; 0 in the host tier), a record size, a tenant
// and a rank.
struct EvictionOrder {
  std::uint32_t device = 0;
  std::uint64_t record_bytes = 0;
  TenantId tenant = kDefaultTenant;
  Rank rank = Rank::normal;
  bool same_but_for_rank(const EvictionOrder& other) const noexcept {
    return device == other.device && record_bytes == other.record_bytes && tenant == other.tenant;
  }
  friend auto operator<=>(const EvictionOrder&, const EvictionOrder&) = default;
};

class ClassLists {
 public:
  ClassLists(BlockIndex& blocks, Tier tier, std::size_t classes)
      : blocks_(&blocks), lists_(classes, LruList(blocks, tier)) {}

  bool empty() const noexcept { return filled_ == 0; }
  // Of a block that is in one of these lists or in none of this tier.
  bool contains(BlockId id) const noexcept { return lists_.front().contains(id); }

  void push_newest(BlockId id) noexcept { filled(class_of(id)).push_newest(id); }
  void push_oldest(BlockId id) noexcept { filled(class_of(id)).push_oldest(id); }
  // Right behind `parent`, which must be in one of these lists; as the newest, if in another one.
  void push_behind(BlockId parent, BlockId id) noexcept {
    LruList& of = filled(class_of(id));
    class_of(parent) == class_of(id) ? of.push_behind(parent, id) : of.push_newest(id);
  }
  void remove(BlockId id) noexcept { remove(std::span(&id, 1)); }
  // Blocks that follow one another in a prefix, and are in these lists: as many at once as stand
  // side by side.
  void remove(std::span<const BlockId> blocks) noexcept {
    while (!blocks.empty()) {
      std::size_t end = 1;
      while (end < blocks.size() && lists_.front().newer(blocks[end]) == blocks[end - 1]) ++end;
      const UseClass use = class_of(blocks.front());
      lists_[use].remove(blocks.first(end));
      note_emptied(use);
      blocks = blocks.subspan(end);
    }
  }
  // Such blocks, which are in no list, become the newest of their classes, the first newer than the
  // last.
  void push_newest(std::span<const BlockId> blocks) noexcept {
    while (!blocks.empty()) {
      const UseClass use = class_of(blocks.back());
      std::size_t first = blocks.size() - 1;
      while (first > 0 && class_of(blocks[first - 1]) == use) --first;
      filled(use).push_newest(blocks.subspan(first));
      blocks = blocks.first(first);
    }
  }
  // The block, whose mark changes next, is the newest of another class.
  void move_to(UseClass use, BlockId id) noexcept {
    remove(id);
    filled(use).push_newest(id);
  }
  // From the last block of a prefix to its first: each that is in one of these lists becomes the
  // newest of the class of its mark, which it gets next.
  void move_all(std::span<const std::pair<BlockId, PackedMark>> to) noexcept {
    each_run(
        to.size(), [&](std::size_t i) { return to[i].first; },
        [&](std::size_t i) { return to[i].second.use(); });
  }
  // Makes the blocks of a prefix that are in these lists the newest of their classes, the first
  // newer than the last.
  void touch(std::span<const BlockId> prefix) noexcept {
    const std::size_t last = prefix.size() - 1;
    each_run(
        prefix.size(), [&](std::size_t i) { return prefix[last - i]; },
        [&](std::size_t i) { return class_of(prefix[last - i]); });
  }

  // The block that was used longest ago; kNoBlock where there is none.
  BlockId oldest() const noexcept {
    BlockId oldest = kNoBlock;
    each_class([&](UseClass, const LruList& list) {
      if (oldest == kNoBlock || is_older(list.oldest(), oldest)) oldest = list.oldest();
    });
    return oldest;
  }
  BlockId oldest(UseClass of) const noexcept { return lists_[of].oldest(); }
  // The oldest block of some other class than that of `id`; kNoBlock where there is none.
  BlockId oldest_but_of(BlockId id) const noexcept {
    const std::uint64_t others = filled_ & ~(1ULL << class_of(id));
    return others == 0 ? kNoBlock : lists_[std::countr_zero(others)].oldest();
  }
  // Calls `visit(class, list)` for each list that is not empty.
  template <class Visit>
  void each_class(Visit&& visit) const {
    for (std::uint64_t left = filled_; left != 0; left &= left - 1) {
      const auto use = static_cast<UseClass>(std::countr_zero(left));
      visit(use, lists_[use]);
    }
  }

 private:
  UseClass class_of(BlockId id) const noexcept {
    return lists_.size() == 1 ? UseClass{0} : blocks_->use_class(id);
  }
  // The list of a class that gets a block now.
  LruList& filled(UseClass use) noexcept {
    filled_ |= 1ULL << use;
    return lists_[use];
  }
  void note_emptied(UseClass use) noexcept {
    if (lists_[use].empty()) filled_ &= ~(1ULL << use);
  }
  // Of `count` blocks, from the last of a prefix to its first, each becomes the newest of the class
  // `to` says: as many at once as stand side by side and go to the same class.
  template <class At, class To>
  void each_run(std::size_t count, At&& at, To&& to) noexcept {
    constexpr std::size_t kAhead = 16;
    LruList::Run run;
    UseClass run_to = 0;
    for (std::size_t i = 0; i < count + kAhead; ++i) {
      if (i < count) {
        lists_.front().prefetch(at(i));
        if (lists_.size() > 1) blocks_->prefetch_mark(at(i));
      }
      if (i >= kAhead / 2 && i - kAhead / 2 < count)
        lists_.front().prefetch_neighbours(at(i - kAhead / 2));
      if (i < kAhead) continue;
      const BlockId id = at(i - kAhead);
      const UseClass id_to = to(i - kAhead);
      if (run.blocks != 0 && id_to == run_to && lists_.front().newer(run.newest) == id) {
        run.newest = id;
        ++run.blocks;
        continue;
      }
      move(run, run_to);
      run = contains(id) ? LruList::Run{id, id, 1} : LruList::Run{};
      run_to = id_to;
    }
    move(run, run_to);
  }
  void move(const LruList::Run& run, UseClass to) noexcept {
    if (run.blocks == 0) return;
    const UseClass from = class_of(run.newest);
    if (from == to && lists_[to].newest() == run.newest) return;
    lists_[from].cut(run);
    note_emptied(from);
    filled(to).push_newest(run);
  }
  bool is_older(BlockId a, BlockId b) const noexcept {
    const Block &of_a = (*blocks_)[a], &of_b = (*blocks_)[b];
    return of_a.last_access != of_b.last_access ? of_a.last_access < of_b.last_access
                                                : of_a.block_index > of_b.block_index;
  }

  BlockIndex* blocks_;
  std::vector<LruList> lists_;
  std::uint64_t filled_ = 0;
};

}  // namespace kvtier::daemon
