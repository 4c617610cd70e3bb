// The policy `hit_density`: what a use of a prefix says of its blocks, and which block of an
// eviction order goes first by what was learnt of such blocks (HitRates). Owned by the control
// thread, and asked by the Catalogue alone.
//
// A use is what a stamp of the cache's clock stands for: a lease of leading blocks and the commits
// behind them, or a prefix that came without one. It gives each of its blocks a class. That of what
// comes behind known blocks is decided with the first block that is new: it is what the
// conversation has grown by, where an earlier prompt ended there and little is new, and fresh
// otherwise. A block that has been evicted and comes again is used again; of those between the
// sampled keys of such a prefix the same is supposed.
//
// The block that goes is of the use with the least density, among the oldest of each class; and of
// that use, whatever their classes, the last of its prefix goes before the others.
// The last uses are remembered for that in a ring, by their stamp; of an older one the blocks go in
// the order of their list, which is the same within a class.
//
// Where age alone has done better of late (Rivals), the block that was used longest ago goes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/cache/catalogue/class_lists.h"
#include "daemon/cache/policy/hit_rates.h"
#include "daemon/cache/policy/rivals.h"
#include "daemon/telemetry.h"

namespace kvtier::daemon {

// What is known of a prompt whose blocks are used; 0: not told.
struct Prompt {
  std::uint32_t blocks = 0;  // that could be cached
  std::uint32_t block_tokens = 0;
  std::uint32_t answer_tokens = 0;  // of what is generated
};

class HitDensity {
 public:
  // Both outlive this.
  HitDensity(BlockIndex& blocks, StampAges& ages);

  // ---- uses

  // The prefix, whose blocks have this stamp by now, was used. Without `learn` nobody has asked for
  // it yet: its classes stay. Else calls `relist(block, mark)` from its last block to its first:
  // each is to be the newest of the class of its mark, and to get that.
  template <class Relist>
  void used(std::span<const BlockId> prefix, std::uint64_t stamp, const Prompt& prompt, bool learn,
            Relist&& relist) {
    begin(prefix.empty() ? kNoBlock : prefix.back(), stamp, prompt);
    note_last(prefix, stamp);
    if (!learn) return;
    blocks_of_a_use_ += kOfTheLast * (static_cast<double>(prefix.size()) - blocks_of_a_use_);
    std::uint32_t turn = grown_turn(prefix, stamp, prompt);
    find_learnt(prefix);
    for (std::size_t i = prefix.size(); i-- > 0;) {
      const PackedMark mark = blocks_.mark(prefix[i]).used_again(turn);
      // Heads have had as many turns as what is behind them, at least.
      turn = mark.turn();
      if (!learnt_.empty() && learnt_.back() == i) {
        learn_again(blocks_[prefix[i]].key, mark);
        learnt_.pop_back();
      }
      relist(prefix[i], mark);
    }
  }
  // Asks for what used() reads of a block first.
  void prefetch(BlockId id) const noexcept {
    blocks_.prefetch_mark(id);
    const Key& key = blocks_[id].key;
    if (sampled(key)) rates_.prefetch_bucket(key);
  }
  // The block is new, has its stamp, and is in no order yet; `parent` is before it in its prefix,
  // or kNoBlock. Of a prompt that was leased before, what was told then holds; of its answer, what
  // is told first.
  void came(BlockId id, BlockId parent, const Prompt& prompt);

  // ---- orders

  // A placement has entered its order, or is about to leave it.
  void enlisted(BlockId id, Tier tier) noexcept;
  void delisted(BlockId id, Tier tier) noexcept;
  // Of lists that are not empty; `here(block)` says whether a block is in one of them.
  template <class Here>
  BlockId first_to_go(const ClassLists& lists, Tier tier, Here&& here) {
    if (!rates_.refreshed() || oldest_is_better(tier)) return lists.oldest();
    const BlockId again = goes_on(lists, tier);
    if (again != kNoBlock && here(again)) return again;
    const BlockId least = least_dense(lists, tier);
    const BlockId last = last_of_its_use(least, tier);
    const bool found = last != kNoBlock && here(last);
    remember(lists, tier, found ? last : least);
    return found ? last : least;
  }

  // About once a second, with the blocks that each tier has room for, as far as that is known.
  void pass_time(std::uint32_t now, const std::array<std::uint64_t, kTiers>& room);
  bool oldest_is_better(Tier tier) const noexcept {
    return rivals_[index_of(tier)].oldest_is_better();
  }
  // That a block whose last use was of this class is used again while the tier would keep it; 1 as
  // long as nothing is known.
  double chance(UseClass use, Tier tier) const noexcept {
    return rates_.refreshed() ? rates_.chance(use, least_[index_of(tier)]) : 1;
  }
  const HitRates& rates() const noexcept { return rates_; }
  UseMark mark(BlockId id) const noexcept { return blocks_.mark(id).unpacked(); }
  // Beside what each block takes.
  std::uint64_t fixed_bytes() const noexcept;

 private:
  enum class Behind : std::uint8_t { undecided, fresh_or_grown, again };
  struct Use {
    std::uint32_t stamp = 0;                                         // its last 32 bits
    std::uint32_t at = 0;                                            // seconds
    std::array<BlockId, kTiers> last{kNoBlock, kNoBlock, kNoBlock};  // of its prefix, in order
    std::uint32_t prompt_blocks = 0;
    // What comes behind its blocks.
    PackedMark mark;  // if decided that of what comes; else of the last block that was known
    Behind behind = Behind::undecided;
    UseClass answer = 0;
  };
  static_assert(sizeof(Use) == 28, "with the marks, 9 bytes a block");
  // Which use gives the next blocks too, as long as they are of the same class.
  struct Going {
    const ClassLists* lists = nullptr;
    std::uint64_t stamp = 0;
    std::uint32_t left = 0;
    UseClass use = 0;
  };
  static constexpr std::uint32_t kGoOn = 15;
  static constexpr double kOfTheLast = 1.0 / 64;  // the part of the last one in a mean of late

  Use& use_at(std::uint64_t stamp) noexcept { return uses_[stamp & (uses_count_ - 1)]; }
  const Use* use_of(std::uint64_t stamp) const noexcept;
  void begin(BlockId last, std::uint64_t stamp, const Prompt& prompt);
  void note_last(std::span<const BlockId> prefix, std::uint64_t stamp) noexcept;
  // Of which blocks of a prefix anything is learnt: few. What is known of them is asked for.
  void find_learnt(std::span<const BlockId> prefix) {
    learnt_.clear();
    for (std::uint32_t i = 0; i < prefix.size(); ++i) {
      const Key& key = blocks_[prefix[i]].key;
      if (!sampled(key) && !plays(key)) continue;
      if (sampled(key)) rates_.prefetch_sample(key);
      learnt_.push_back(i);
    }
  }
  std::uint32_t grown_turn(std::span<const BlockId> prefix, std::uint64_t stamp,
                           const Prompt& prompt) const;
  UseMark mark_behind(Use& use, BlockId id, std::uint32_t block_tokens);
  static UseMark decided(const Use& use, std::uint32_t index, std::uint32_t block_tokens) noexcept;
  void goes_on_behind(BlockId parent);
  bool sampled(const Key& key) const noexcept { return rates_.samples(key); }
  bool plays(const Key& key) const noexcept {
    return rivals_play_ &&
           std::ranges::any_of(rivals_, [&](const Rivals& each) { return each.samples(key); });
  }
  void learn(const Key& key, PackedMark mark) {
    if (sampled(key)) rates_.note(key, mark.unpacked(), now_);
    if (rivals_play_) play(key, mark.use());
  }
  void learn_again(const Key& key, PackedMark mark);
  void play(const Key& key, UseClass use);
  BlockId last_of_its_use(BlockId id, Tier tier) const noexcept;
  BlockId goes_on(const ClassLists& lists, Tier tier) noexcept;
  BlockId least_dense(const ClassLists& lists, Tier tier);
  void remember(const ClassLists& lists, Tier tier, BlockId going) noexcept;
  std::uint32_t age_of(BlockId id);

  BlockIndex& blocks_;
  StampAges& ages_;
  HitRates rates_;
  std::array<Rivals, kTiers> rivals_;
  bool rivals_play_ = false;  // for some tier
  std::uint32_t uses_count_;  // a power of two
  HugeArray<Use> uses_;
  TierSet listed_;  // tiers that ever had a block in an order
  std::array<Going, kTiers> going_{};
  std::array<double, kTiers> least_{};  // densities at which blocks went of late
  double blocks_of_a_use_ = 0;          // in the mean, of late
  std::vector<std::uint32_t> learnt_;   // places in a prefix; kept for its memory
  std::uint32_t now_ = 0;
};

}  // namespace kvtier::daemon
