// What is cached and where: the index, the eviction order of every tier, the namespaces, and the
// directory that clients read, kept in step. Knows nothing of memory, disks or clients, but that
// the disk tier has devices, each with eviction orders of its own and each perhaps hidden for a
// while. Owned by the control thread.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "core/wire/directory.h"
#include "daemon/cache/catalogue/block_index.h"
#include "daemon/cache/catalogue/class_lists.h"
#include "daemon/cache/catalogue/hit_density.h"
#include "daemon/cache/catalogue/namespaces.h"
#include "daemon/cache/catalogue/user_id.h"
#include "daemon/config/config.h"
#include "daemon/limits.h"
#include "daemon/telemetry.h"

namespace kvtier::daemon {

struct TierCounts {
  std::uint64_t blocks = 0;
  std::uint64_t demoted = 0;     // of them: the first to go
  std::uint64_t raised = 0;      // and those that a hint keeps, or prefers
  std::uint64_t bytes = 0;       // of records
  std::uint64_t insertions = 0;  // less all removals: `blocks`
  std::uint64_t inserted_bytes = 0;
  Removals removals{};
  Histogram idle;  // seconds since the last use, of what was evicted
  std::uint64_t evictions() const noexcept { return daemon::evictions(removals); }
};

class Catalogue {
 public:
  Catalogue(std::uint32_t blocks_max, DirectoryWriter& directory, Tenants tenants = Tenants(),
            EvictionPolicy policy = EvictionPolicy::lru);

  Tenants& tenants() noexcept { return tenants_; }
  const Tenants& tenants() const noexcept { return tenants_; }
  TenantId tenant(BlockId id) const noexcept { return namespaces_[index_[id].ns].tenant; }
  Namespaces& namespaces() noexcept { return namespaces_; }
  const Namespaces& namespaces() const noexcept { return namespaces_; }
  const Block& block(BlockId id) const noexcept { return index_[id]; }
  std::uint32_t size() const noexcept { return index_.size(); }
  std::uint32_t capacity() const noexcept { return index_.capacity(); }
  std::uint64_t record_bytes(BlockId id) const noexcept {
    return namespaces_[index_[id].ns].layout.record_bytes;
  }

  // The block of this key in this namespace; kNoBlock where there is none or it is doomed.
  BlockId find(std::uint16_t ns, const Key& key) const noexcept;
  // Finds the leading blocks of a prefix, up to the first that find() would not. Returns how many;
  // that many of `ids`, which is as long as `keys`, are set.
  std::size_t find_prefix(std::uint16_t ns, std::span<const Key> keys,
                          std::span<BlockId> ids) const noexcept;
  // Asks the processor to load what looking these keys up, or adding and placing them, will read
  // first. The more at once the better, up to a few dozen.
  void prefetch(std::span<const Key> keys) const noexcept { index_.prefetch(keys); }
  // See BlockIndex::populate().
  void populate(std::uint32_t first, std::uint32_t count, Tier tier) const noexcept {
    index_.populate(first, count, tier);
  }
  // The same of an entry.
  void prefetch_entry(BlockId id) const noexcept {
    prefetch_memory(&index_[id]);
    index_.prefetch_mark(id);
  }
  // Whatever its namespace, doomed or not.
  BlockId find_any(const Key& key) const noexcept { return index_.find(key); }
  bool taken(const Key& key) const noexcept { return find_any(key) != kNoBlock; }
  // A new entry, placed nowhere yet; the caller places it before anything else happens. kNoBlock:
  // full.
  BlockId add(std::uint16_t ns, const Key& key, const Key& parent, std::uint32_t block_index);
  const Key& parent(BlockId id) const noexcept { return index_.parent(id); }
  // The new entry, which is placed nowhere yet, is used from now on; it gets its stamp. Never newer
  // than its parent, so that the order restored from stamps has tails before heads. `prompt`: what
  // it is the block of, as far as whoever brings it says.
  void came(BlockId id, Prompt prompt = {});
  // Blocks are numbered below it; see SelectionWalk for going through them in pieces.
  std::uint32_t numbers_used() const noexcept { return index_.used(); }

  // `parent`: the key before it in its prefix, behind which it goes in the eviction order.
  void place(BlockId id, Tier tier, Place at, const Key& parent);
  // The same outside the eviction order, for recovery, which knows the order only when it knows
  // all: one of the next two must follow before anything else happens to the block.
  void place_unlisted(BlockId id, Tier tier, Place at);
  void enlist_newest(std::span<const BlockId> newest_first, Tier tier);
  void enlist_oldest(BlockId id, Tier tier);
  // Nobody may hold that placement. The entry goes with its last placement.
  Place unplace(BlockId id, Tier tier, Removal why);

  // Placements on a hidden device stay where they are, but clients are not told of them. The
  // directory follows block by block as they are republished.
  void hide_device(std::uint32_t device, bool hidden) noexcept;
  void republish(BlockId id) noexcept { publish(id); }
  // The tiers that can serve the block now.
  TierSet reachable(BlockId id) const noexcept;

  // ---- the remote tier: what is known to be there, and perhaps is so no more

  // Blocks have no place in it and nobody holds them there. An entry that is nowhere else is in an
  // order of its own, by when it came to be so.
  void set_remote(BlockId id);
  // The entry goes if it is nowhere else; it must not be `loading` then.
  void unset_remote(BlockId id);
  bool is_only_remote(BlockId id) const noexcept {
    return index_[id].tiers == TierSet{}.with(Tier::remote);
  }
  // Whether clients are told of what is there alone, and leases find it.
  void hide_remote(bool hidden) noexcept { remote_hidden_ = hidden; }
  // Of what is there alone, and not on its way from there: the one that came first; kNoBlock where
  // there is none.
  BlockId oldest_only_remote() const noexcept { return only_remote_.oldest(); }
  std::uint64_t remote() const noexcept { return remote_; }  // blocks
  std::uint64_t only_remote() const noexcept { return only_remote_count_; }

  // A hold keeps a placement out of the eviction order. False at the bound on holds of one
  // placement.
  bool hold(BlockId id, Tier tier);
  // The last hold's end puts the placement back: behind its parent if that is in the eviction
  // order, as the newest otherwise.
  void unhold(BlockId id, Tier tier, const Key& parent = {});

  // Makes every unheld placement of a prefix's blocks, which are of one namespace, the newest, the
  // first block newer than the last.
  void touch(std::span<const BlockId> prefix);

  // The holds of a lease, whose blocks are of one namespace, on memory tiers. As hold() and
  // unhold() of each, and a touch() at the end, but in two steps: what is held leaves its order,
  // and what is held no more enters it, with all of them. Nothing may look at the orders between.
  bool hold_in_order(BlockId id, Tier tier);
  void leave_orders(std::span<const BlockId> prefix);
  void unhold_out_of_order(BlockId id, Tier tier);
  void enter_orders(std::span<const BlockId> prefix);

  // What goes before what among the placements of a tenant (Rank). The placement, which is there,
  // goes behind its parent in the order of its new rank, or is the newest.
  void set_rank(BlockId id, Tier tier, Rank rank);
  // Told of a placement that is raised and is about to go.
  std::function<void(BlockId, Tier)> on_raised_gone;
  // Leading blocks of a prefix are used by somebody at this stamp, and touched: what was demoted of
  // them is so no more, and who has which in common with whom is noted. With a prompt, they are
  // used for it, and the policy learns; without, they are about to be.
  void use(std::span<const BlockId> prefix, UserId user, std::uint64_t stamp,
           const std::optional<Prompt>& prompt = std::nullopt);
  // Whether nobody else has used it later.
  bool is_used_by(BlockId id, UserId user) const noexcept {
    return index_.user(id) == mark_of(user);
  }
  void set_user(BlockId id, UserId user) noexcept { index_.set_user(id, mark_of(user)); }

  // Found by nobody from now on; removed by whoever ends its last hold (see doomed()).
  void doom(BlockId id);
  // Found by nobody until these of its placements, which do not hold, are gone; each goes with the
  // last hold of it (see spoilt()). Of a block that is doomed already nothing else stays either.
  void spoil(BlockId id, TierSet tiers);
  TierSet spoilt(BlockId id) const noexcept { return index_[id].spoilt(); }
  bool doomed(BlockId id) const noexcept { return index_[id].doomed; }
  static bool unheld(const Block& block) noexcept { return block.holds == decltype(block.holds){}; }

  void set_pinned(BlockId id, TierSet tiers) noexcept { index_[id].pinned = tiers; }
  // A read of it is under way, which keeps an entry that is in the remote tier alone.
  void set_loading(BlockId id, bool on) noexcept;
  void set_write_queued(BlockId id, bool on) noexcept { index_[id].write_queued = on; }
  void set_stamp_dirty(BlockId id, bool on) noexcept { index_[id].stamp_dirty = on; }
  // The block is in the host tier, with which the mark goes.
  void set_left_out(BlockId id, bool on) noexcept {
    left_out_ += std::uint64_t{on} - std::uint64_t{index_[id].left_out};
    index_[id].left_out = on;
  }
  std::uint64_t left_out() const noexcept { return left_out_; }
  void set_last_access(BlockId id, std::uint64_t stamp) noexcept { index_[id].last_access = stamp; }

  // The number of the disk or GPU that the block is on in this tier, which has it; 0 in the host's.
  std::uint32_t device(BlockId id, Tier tier) const noexcept;

  using Order = EvictionOrder;

  // The evictable block that goes first in the orders for which `may(order)`, which asks for all
  // but the rank; kNoBlock where none may go. Looks at the ends of the orders, whose number is that
  // of sizes in use times devices times tenants times ranks in use. Which tenant, size and device
  // it is of depends on the last use of their oldest blocks alone. The rank and the policy only say
  // which of those blocks it is: one tenant's hints are no burden to another.
  template <class May>
  BlockId coldest(Tier tier, May&& may) const {
    const auto& lists = lists_[index_of(tier)];
    return coldest_between(tier, lists.begin(), lists.end(), may);
  }
  // The same among the records of one size on one device.
  template <class May>
  BlockId coldest(Tier tier, std::uint64_t record_bytes, std::uint32_t device, May&& may) const {
    const auto& lists = lists_[index_of(tier)];
    return coldest_between(
        tier, lists.lower_bound({device, record_bytes, 0, Rank::spent}),
        lists.upper_bound({device, record_bytes, std::numeric_limits<TenantId>::max(), Rank::last}),
        may);
  }
  // Of all tenants.
  BlockId oldest(Tier tier, std::uint64_t record_bytes, std::uint32_t device = 0) const {
    return coldest(tier, record_bytes, device, [](const Order&) { return true; });
  }
  BlockId oldest(Tier tier) const {
    return coldest(tier, [](const Order&) { return true; });
  }
  // The block that coldest() would find in each size, tenant and device for which `may(order)`, the
  // one with the oldest block first.
  template <class May>
  std::vector<BlockId> ends(Tier tier, May&& may) const {
    const auto& lists = lists_[index_of(tier)];
    std::vector<std::pair<std::uint64_t, const ClassLists*>> found;
    each_end(lists.begin(), lists.end(), may,
             [&](const End& end) { found.emplace_back(used(end), end.first); });
    std::ranges::stable_sort(found, {}, [](const auto& end) { return end.first; });
    std::vector<BlockId> ids;
    ids.reserve(found.size());
    for (const auto& [used, lists_of] : found) ids.push_back(first_to_go(tier, *lists_of));
    return ids;
  }
  // Of the order that a block is in, the one that was used longest ago. By the policy `lru` it is
  // the one that goes first, and so is `id` where it is that.
  BlockId oldest_beside(BlockId id, Tier tier) const {
    const auto& lists = lists_[index_of(tier)];
    return lists.at(order_of(id, tier)).oldest();
  }
  // When it was: age decides between sizes, tenants and devices, whatever the policy is within
  // them.
  std::uint64_t last_use_beside(BlockId id, Tier tier) const {
    return index_[oldest_beside(id, tier)].last_access;
  }

  // As Namespaces::open(). Orphans that turn out to be of a tenant move to its orders, as the next
  // to go.
  Result<std::uint16_t> open_namespace(std::span<const std::byte> encoded, UserId owner = kNoUser);

  // Another one of the order that a block is in: the next newer one of its class, or the oldest of
  // another class; kNoBlock where there is none.
  BlockId other_than(BlockId id, Tier tier) const {
    const BlockId newer = evicted_after(id, tier);
    return newer != kNoBlock ? newer
                             : lists_[index_of(tier)].at(order_of(id, tier)).oldest_but_of(id);
  }

  // The next newer one of the same class as `id`, which is in the order of this tier; kNoBlock
  // after the newest. By the policy `lru` it is the one to be evicted after it.
  BlockId evicted_after(BlockId id, Tier tier) const noexcept {
    return index_.link(id, tier).newer;
  }

  const TierCounts& counts(Tier tier) const noexcept { return counts_[index_of(tier)]; }

  // The logical clock, of which Block::last_access is a stamp: it counts leases and commits. What
  // is used later has the larger stamp, across restarts too.
  std::uint64_t clock() const noexcept { return clock_; }
  std::uint64_t tick() noexcept { return ++clock_; }
  // A block is there that an earlier daemon gave this stamp.
  void pass_stamp(std::uint64_t stamp) noexcept { clock_ = std::max(clock_, stamp + 1); }
  // The ages of stamps.
  StampAges& ages() noexcept { return ages_; }
  // About once a second, `now` in seconds from 1 up.
  void pass_time(std::uint32_t now);
  // What was learnt of uses; null by the policy `lru`.
  // HitDensity::chance() of the block by its last use; 1 where the policy knows none.
  double chance_of_reuse(BlockId id, Tier tier) const noexcept {
    return hit_density_ ? hit_density_->chance(hit_density_->mark(id).use, tier) : 1;
  }
  const HitDensity* hit_density() const noexcept { return hit_density_ ? &*hit_density_ : nullptr; }

  // Told where clients can find a block, as that changes; nowhere, as it goes.
  std::function<void(BlockId, TierSet)> on_published;

  // Told of placements as they enter and leave their eviction order, as many as there are at once
  // in the container of `at`.
  std::function<void(Tier, Place at, TenantId, bool evictable, std::uint32_t count)> on_evictable;

  template <class Visit>
  void each(Visit&& visit) const {
    index_.each(std::forward<Visit>(visit));
  }

 private:
  using Lists = std::map<Order, ClassLists>;  // which keeps the lists where they are
  ClassLists& list(Tier tier, Order order);
  ClassLists& list(BlockId id, Tier tier) { return list(tier, order_of(id, tier)); }
  Order order_of(BlockId id, Tier tier) const noexcept;
  // Orders that differ in rank alone.
  struct End {
    Lists::const_iterator from, to;
    const ClassLists* first = nullptr;  // of the lowest rank that has a block
  };
  // Orders of one size, tenant and device stand side by side, the lowest rank first.
  template <class May, class Visit>
  void each_end(Lists::const_iterator at, Lists::const_iterator end, May&& may,
                Visit&& visit) const {
    while (at != end) {
      End found{at, at};
      for (; at != end && at->first.same_but_for_rank(found.from->first); ++at) {
        if (found.first == nullptr && !at->second.empty()) found.first = &at->second;
      }
      found.to = at;
      if (found.first != nullptr && may(found.from->first)) visit(found);
    }
  }
  // When the oldest block of them was used.
  std::uint64_t used(const End& end) const {
    std::uint64_t oldest = ~0ULL;
    for (auto at = end.from; at != end.to; ++at) {
      if (!at->second.empty()) oldest = std::min(oldest, index_[at->second.oldest()].last_access);
    }
    return oldest;
  }
  // Most often there is one; then nothing is compared.
  template <class May>
  BlockId coldest_between(Tier tier, Lists::const_iterator at, Lists::const_iterator end,
                          May&& may) const {
    std::optional<End> best;
    std::optional<std::uint64_t> best_used;
    each_end(at, end, may, [&](const End& found) {
      if (!best) return void(best = found);
      if (!best_used) best_used = used(*best);
      const std::uint64_t used_at = used(found);
      if (used_at >= *best_used) return;
      best = found;
      best_used = used_at;
    });
    return best ? first_to_go(tier, *best->first) : kNoBlock;
  }
  BlockId first_to_go(Tier tier, const ClassLists& lists) const;
  static std::uint32_t mark_of(UserId user) noexcept {
    return static_cast<std::uint32_t>(user) + 1;
  }
  static constexpr std::size_t bucket_of(std::uint32_t device, Rank rank) noexcept {
    return device * std::size_t{kRanks} + static_cast<std::size_t>(rank);
  }
  void put_in_order(BlockId id, Tier tier, const Key& parent);
  void take_from_order(BlockId id, Tier tier);
  class EvictableRun;
  template <class Is, class Visit>
  void each_piece(std::span<const BlockId> prefix, Tier tier, Is&& is, Visit&& visit);
  void relist();
  std::optional<Order> only_order(BlockId id, Tier tier) const;
  std::optional<Order> only_order_of(std::uint16_t ns, Tier tier) const;
  std::optional<Order> only_order_of_all(Tier tier) const;
  void change_rank(Block& block, Tier tier, Rank rank) noexcept;
  bool note_use(std::span<const BlockId> prefix, UserId user, std::uint64_t stamp);
  void touch_by_order(std::span<const BlockId> prefix, Tier tier);
  void touch(std::span<const BlockId> prefix, Tier tier);
  void enlist(BlockId id, Tier tier, const Key& parent);
  void tell_evictable(BlockId id, Tier tier, bool evictable) const;
  void follow_remote(BlockId id) noexcept;
  void forget(BlockId id) noexcept;
  void publish(BlockId id) noexcept;

  BlockIndex index_;
  Tenants tenants_;
  Namespaces namespaces_;
  std::array<Lists, kTiers> lists_;
  std::vector<std::pair<BlockId, PackedMark>> relisted_;  // kept for its memory
  struct Recent {
    Order order;
    ClassLists* lists = nullptr;
  };
  std::array<Recent, kTiers> recent_{};          // the orders that were looked up last
  std::array<std::uint32_t, kTiers> devices_{};  // that ever had a block: sets of bits
  std::uint32_t hidden_ = 0;                     // disks
  bool remote_hidden_ = true;
  std::uint64_t remote_ = 0, only_remote_count_ = 0;  // blocks
  LruList only_remote_{index_, Tier::remote};         // those of them that are not loading
  std::uint64_t left_out_ = 0;                        // blocks
  static constexpr std::size_t kDevicesMax = std::max(limits::kDisksMax, limits::kGpusMax);
  std::array<std::vector<BlockId>, kDevicesMax * kRanks> touched_;  // kept for their memory
  std::array<TierCounts, kTiers> counts_;
  std::uint64_t clock_ = 1;
  // Where a policy remembers of its last answer what the next one begins with.
  mutable StampAges ages_;
  mutable std::optional<HitDensity> hit_density_;
};

// Goes ahead of whoever removes the oldest blocks of an order from one tier, one after the other,
// and asks the processor for what each removal will read. It keeps no block in mind: any may be
// removed between two steps.
class EvictionAhead {
 public:
  EvictionAhead(const Catalogue& catalogue, Tier tier) noexcept
      : catalogue_(catalogue), tier_(tier) {}

  // Before each removal. `oldest()`: the block that is to go next, which is in an order of the
  // tier; kNoBlock where none is to go.
  template <class Oldest>
  void step(Oldest&& oldest) {
    if (steps_++ % kPiece == 0) look_ahead_from(oldest());
  }

 private:
  static constexpr std::size_t kPiece = 16;
  void look_ahead_from(BlockId id) const noexcept;
  const Catalogue& catalogue_;
  Tier tier_;
  std::size_t steps_ = 0;
};

}  // namespace kvtier::daemon
