// Hints: which blocks clients expect to need, soon, long or no more. Owned by the control thread.
//
// A hint changes the order in which placements of its own tenant go (Rank), and nothing else:
// nobody is evicted for its sake, other tenants lose no block that they would have kept, and what
// is kept goes all the same where nothing else can (adr/0042). What one user's hints raise is
// bounded in bytes of each part of a memory tier, and so is what all users' do. Only what no other
// user has used is lowered. Hints end with the daemon, and with the placement that they are of.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/cache/hints/hint_counts.h"
#include "daemon/cache/hints/prefetches.h"
#include "daemon/cache/tiers/disk_tier.h"
#include "daemon/cache/tiers/memory_tiers.h"

namespace kvtier::daemon {

class Hints {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Options {
    // Of what its tenant may have of a part of a memory tier, what one user's hints may keep or
    // prefer; and what its prefetches may have on their way to the host's.
    std::uint32_t kept_percent = 10;
    std::uint32_t prefetched_percent = 25;
  };
  // All outlive this; `later` may be set after this has been made.
  Hints(Options options, Catalogue& catalogue, MemoryTiers& memory, DiskTier& disk, Loads& loads,
        const Later& later);
  Hints(const Hints&) = delete;

  // Of blocks that follow one another in a prefix of the namespace. `device`: the GPU of whoever
  // says so. The hint's tier is a memory tier, and its priority at most kHintPriorityMax.
  struct Said {
    UserId user = 0;
    std::uint16_t ns = 0;
    std::span<const Key> keys;
    Hint hint;
    std::uint32_t device = 0;
  };
  void take(const Said& said, Time now);
  // A hint that its peer has no right to.
  void deny(HintKind kind, std::size_t blocks) noexcept {
    counts_.add(kind, HintOutcome::denied, blocks);
  }
  // Ends at most `most` keeps whose time has come, heads of prefixes first. True if there may be
  // more of them.
  bool expire(Time now, std::uint32_t most);
  // The placement is about to go, or is to be as any other.
  void forget(BlockId id, Tier tier);

  const HintCounts& counts() const noexcept { return counts_; }
  std::uint64_t prefetching() const noexcept { return prefetches_.blocks(); }
  // Placements that are raised, in all parts of the tier.
  std::uint64_t blocks(Tier tier) const noexcept { return blocks_[index_of(tier)]; }
  std::uint64_t bytes(Tier tier) const noexcept { return bytes_[index_of(tier)]; }
  // What all users' hints may raise in a part of a tier.
  std::uint64_t bytes_max(Tier tier, std::uint32_t device) const noexcept;
  struct Raised {
    std::uint8_t priority = 0;
    std::optional<Time> until{};
  };
  // Of one that is not raised: neither.
  Raised raised(BlockId id, Tier tier) const;

 private:
  using Placement = std::uint64_t;                         // the block's number and the tier
  using End = std::tuple<Time, std::uint32_t, Placement>;  // with the block's place in its prefix
  using Part = std::pair<Tier, std::uint32_t>;
  struct Entry {
    UserId user = 0;
    std::uint8_t priority = 0;
    std::optional<Time> until{};
  };

  void prefetch(const Said& said);
  void keep(const Said& said, Time now);
  void lower(const Said& said);
  // The leading blocks of the prefix that are there; what is missing is counted.
  std::vector<BlockId> leading(const Said& said);
  // All of them that are there, wherever in the prefix.
  std::vector<BlockId> all(const Said& said);

  HintOutcome keep_one(BlockId id, const Said& said, const Entry& wanted);
  HintOutcome take_back(BlockId id, Tier tier, UserId user);
  HintOutcome raise(BlockId id, Tier tier, const Entry& wanted);
  bool may_raise(BlockId id, Tier tier, UserId user) const;
  void charge(BlockId id, Tier tier, UserId user, bool more);
  void set_entry(Placement at, const Entry& entry);
  void erase_entry(Placement at);
  void set_rank(BlockId id, Tier tier, Rank rank);

  bool is_own(BlockId id, UserId user) const noexcept;
  std::size_t first_of_tail(std::span<const BlockId> blocks, UserId user) const;
  HintOutcome lower_one(BlockId id, Tier from, UserId user);
  bool lower_placement(BlockId id, Tier tier);

  static BlockId block_of(Placement at) noexcept {
    return BlockId(static_cast<std::uint32_t>(at >> 8));
  }
  static Tier tier_of(Placement at) noexcept { return static_cast<Tier>(at & 0xFF); }
  static Placement placement(BlockId id, Tier tier) noexcept {
    return static_cast<Placement>(id.value) << 8 | index_of(tier);
  }
  End end_of(Placement at, Time until) const noexcept {
    return {until, catalogue_.block(block_of(at)).block_index, at};
  }

  Options options_;
  Catalogue& catalogue_;
  MemoryTiers& memory_;
  DiskTier& disk_;
  HintCounts counts_;
  Prefetches prefetches_;
  std::unordered_map<Placement, Entry> entries_;  // of raised placements
  std::set<End> by_end_;                          // of those with a time
  std::map<std::pair<UserId, Part>, std::uint64_t> bytes_of_user_;
  std::map<Part, std::uint64_t> bytes_of_part_;
  std::array<std::uint64_t, kTiers> blocks_{}, bytes_{};
};

}  // namespace kvtier::daemon
