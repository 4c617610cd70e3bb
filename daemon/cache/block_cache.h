// The cache: what leases, reservations, commits and evictions do to the tiers. All policy is here;
// I/O and sockets are elsewhere. Owned by the control thread; nothing here waits.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "daemon/cache/catalogue/catalogue.h"
#include "daemon/cache/catalogue/selection.h"
#include "daemon/cache/hold_table.h"
#include "daemon/cache/pins.h"
#include "daemon/cache/reservations.h"
#include "daemon/cache/tiers/disk_tier.h"
#include "daemon/cache/tiers/memory_tier.h"
#include "daemon/limits.h"
#include "kvtier/result.h"

namespace kvtier::daemon {

using LeaseId = std::uint64_t;

struct CacheCounts {
  std::array<std::uint64_t, kTiers> hit_bytes{};  // of records leased, by the tier they were in
  std::uint64_t unknown_releases = 0;             // of leases that were not there: released twice
  std::uint64_t refused_commits = 0;
  std::uint64_t reported_records_read = 0;  // because a client says that they do not hold
  std::uint64_t faults = 0;                 // blocks that a client or the disk found not to hold
  Histogram reuse_gap;                      // seconds between two uses of a block
};

class BlockCache {
 public:
  struct Options {
    std::uint32_t blocks_max = 0;
    MemoryTier::Options device, host;  // the device tier's of each GPU
    DiskTier::Options disk;
    std::uint32_t pinned_percent_max = 25;  // of each part of a tier
    Tenants tenants{};
    std::uint32_t leases_per_session = limits::kLeasesPerSessionMax;
    std::uint32_t leases_per_user = limits::kLeasesPerUserMax;
    // Of what its tenant may have of a memory tier, the part that one user may hold leased.
    std::uint32_t leased_percent = 100;
  };
  struct Ports {
    std::vector<storage::MemoryExtents*> devices;  // one a GPU; none: no device tier
    storage::MemoryExtents* host = nullptr;
    std::vector<DiskTier::Port> disks;  // none: no disk tier
    DirectoryWriter* directory = nullptr;
    // Numbers for extents, never the same twice; without it they are counted from 1.
    std::function<std::uint32_t()> next_extent = {};
  };
  BlockCache(Options options, Ports ports);

  // What an earlier daemon left in memory.
  struct Left {
    std::vector<std::unique_ptr<storage::Extent>> extents;
    // The encoding of a namespace that it knew; empty where it is not known.
    std::function<std::span<const std::byte>(const NamespaceId&)> encoding;
  };
  // Takes it over, before recover(): sealed slots become blocks again, all others stay quarantined.
  // Returns the processes that may be writing to those, end_process() of each of which is owed; one
  // with start time 0 is the earlier daemon's disk reads. Errors: those of the stores.
  Result<std::vector<ProcessId>> adopt(Left left);
  // Takes over what the disk holds. Once, before anything else but adopt().
  Result<void> recover();

  // The number of a namespace in this daemon, a new one where it is not known yet: then `owner`
  // made it. Errors: malformed, invalid, no_space, refused.
  Result<std::uint16_t> open_namespace(std::span<const std::byte> encoded, UserId owner = kNoUser);
  // Whether opening it makes none: it is known, and was not closed.
  bool knows_namespace(std::span<const std::byte> encoded) const;
  // Namespaces without a block that no session has open are forgotten, by the disks too.
  void forget_unused_namespaces();

  // Whose the session is: what all sessions of a user hold is counted together. One that was never
  // said to begin is a user of its own.
  void begin_session(SessionId session, UserId user) { user_of_[session] = user; }

  struct Grant {
    LeaseId lease = 0;  // 0: nothing granted
    std::vector<SlotName>
        slots;                // one a block granted; 0: on its way from disk, on_ready() follows
    std::vector<Tier> tiers;  // where each block was
  };
  // Holds the leading blocks that are there, none past the session's bounds. Blocks on disk start
  // moving to the host tier. `device`: the session's GPU, or kNoDevice; what lies on another one is
  // served from where else it is. `looked_up`: blocks of the prompt that could have been cached;
  // those that are not granted are misses.
  Grant lease(SessionId session, std::uint16_t ns, std::span<const Key> keys,
              std::uint32_t device = 0, std::uint32_t looked_up = 0);
  // Blocks that a client looked up in vain, without asking for a lease.
  void missed(std::uint16_t ns, std::uint64_t blocks) noexcept;
  // False, and counted, if the session has no such lease. `usable`: how many of its leading blocks
  // came in time and held, as the client found.
  static constexpr std::uint32_t kAllUsable = ~0U;
  bool release(SessionId session, LeaseId lease, std::uint32_t usable = kAllUsable);
  void release_all(SessionId session);

  // block_loans.cc. Slots of a memory tier that a session may fill: free ones, or by eviction; of
  // the device tier on the session's GPU.
  Borrower borrower(SessionId session, ProcessId process, std::uint16_t ns, Tier tier,
                    std::uint32_t device, std::uint64_t client) const;
  // Up to `count`. `contended`: others wait for slots of this part of the tier, so nobody gets more
  // than its due.
  std::vector<SlotName> lend(const Borrower& to, std::uint32_t count, bool contended = false);
  std::vector<SlotName> reserve(SessionId session, ProcessId process, std::uint16_t ns, Tier tier,
                                std::uint32_t count, std::uint32_t device = 0,
                                std::uint64_t client = 0) {
    return lend(borrower(session, process, ns, tier, device, client), count);
  }
  void abandon(SessionId session, SlotName slot);
  // Whether the borrower has fewer slots than its share of what its process may have lent.
  bool has_less_than_due(const Borrower& who) const;
  // See Reservations::set_asking().
  void set_asking(const Borrower& who, bool asking) { reservations_.set_asking(who, asking); }

  // What a session is to give back as far as it lies idle: slots in these extents, and in these
  // namespaces all but so many.
  struct Recall {
    struct Keep {
      std::uint16_t ns;
      Tier tier;
      std::uint32_t slots;
    };
    std::vector<ExtentId> extents;
    std::vector<Keep> keeps;
    bool empty() const noexcept { return extents.empty() && keeps.empty(); }
  };
  using Recalls = std::map<SessionId, Recall>;
  // Adds to `recalls` what has to come home so that the borrower gets what is due to it. False
  // where nothing that could come home would help; true without a recall where it is on its way
  // already.
  bool recall_for(const Borrower& who, Recalls& recalls);
  // The same for the extents that a lowered cap takes.
  void recall_for_cap(Recalls& recalls);
  // Nobody waits for slots any more: an extent that was to go once they are home stays.
  void stop_waiting_for_loans();

  struct NewBlock {
    Key key, parent;
    std::uint32_t block_index = 0;
    std::span<const Token> tokens;
    std::span<const SlotName> slots;  // at most one a tier
  };
  // Makes a filled block visible. A slot of a tier that has it already is freed, and those after it
  // too: what another writer stored is what every tier is to have. False if it was refused (its
  // slots, where the session holds them, are freed). A slot that the daemon cannot
  // address is taken only for a block that is, by then, in another tier too.
  bool commit(SessionId session, std::uint16_t ns, const NewBlock& block);

  // Leases end and reservations are quarantined until end_process().
  void end_session(SessionId session);
  void end_process(ProcessId process);

  // One extent of each memory tier that is over its cap is emptied of what nobody holds, a few
  // thousand blocks at a time, and given back once it is empty: at once, or in a later call. False
  // where no tier is over its cap.
  bool shrink();
  // Whether the last call of shrink() evicted or gave back something, so that another one may too.
  bool shrink_goes_on() const noexcept { return shrink_goes_on_; }

  // This block does not hold: it is found no more.
  void forget(std::uint16_t ns, const Key& key);
  // A client, which has opened these namespaces, found that these blocks do not hold. Believed of
  // those that the session holds leased, unless the daemon finds that the record holds; what it
  // cannot read is believed. Only the placements that do not hold are given up. Returns how many
  // blocks were not believed.
  std::uint64_t report_bad(SessionId session, std::span<const std::uint16_t> namespaces,
                           std::span<const Key> keys);
  // Drops unheld placements. Returns how many blocks lost at least one.
  std::uint64_t drop(std::optional<std::uint16_t> ns, TierSet tiers, Removal why = Removal::drop);
  // The client writes no more to slots that its earlier sessions had reserved.
  void let_go(ProcessId process, std::uint64_t client);
  void flush(std::function<void(Result<void>)> done) { disk_.flush(std::move(done)); }

  // What the tenant has above the new quota goes with trim() and as it needs room. Errors: invalid
  // (guarantees that do not fit quota or tier).
  Result<void> set_limits(TenantId tenant, Tier tier, TenantLimits limits);
  // About once a second.
  void trim();

  struct Landed {
    std::uint32_t block;  // index in the lease
    SlotName slot;        // 0: failed
  };
  // For administrators (block_admin.cc).
  struct Removed {
    std::uint64_t blocks = 0;  // that lost at least one placement
    std::uint64_t in_use = 0;  // that kept one: leased, or on its way to or from disk
    std::uint64_t pinned = 0;  // that kept one because of a pin alone
  };
  // Takes blocks from these tiers as far as nobody holds them there. With `force` their pins end
  // and what is held goes with its last hold, found by nobody from now on; `tiers` are then all.
  void remove(std::span<const BlockId> blocks, TierSet tiers, bool force, Removed& removed,
              Removal why = Removal::drop);
  // These namespaces take nothing any more, under the numbers they have now. Returns the numbers;
  // their blocks are still to be removed.
  std::vector<std::uint16_t> close_namespaces(const NamespaceFilter& filter);
  // Reads the block's record on disk and checks it; one that does not hold is forgotten. Errors
  // now: not_found (not on disk), no_space (busy), unavailable; later: as RecordStore::scrub().
  Result<void> verify_on_disk(BlockId id, std::function<void(Result<void>)> done);
  std::uint64_t pinned_bytes_max(Tier tier, std::uint32_t device) const noexcept;
  Pins& pins() noexcept { return pins_; }
  const Pins& pins() const noexcept { return pins_; }
  std::uint64_t clock() const noexcept { return clock_; }
  // Of one session: leases, and blocks leased.
  std::pair<std::size_t, std::size_t> leased_by(SessionId session) const;

  // Blocks of a lease have come from disk, or failed.
  std::function<void(SessionId, LeaseId, std::span<const Landed>)> on_ready;
  // Has a task run in a later turn of the loop; without it, what is done in steps is done at once.
  std::function<void(std::function<void()>)> later;
  // An extent that was emptied in steps has gone: there is room.
  std::function<void()> on_room;
  // A namespace is to be remembered: a block of it is there, or about to be.
  std::function<void(const KnownNamespace&)> on_namespace;

  Catalogue& catalogue() noexcept { return catalogue_; }
  // `device`: of the device tier, the part on this GPU.
  MemoryTier& memory(Tier tier, std::uint32_t device = 0) noexcept {
    return tier == Tier::device ? *devices_[device] : host_;
  }
  MemoryTier& memory(Tier tier, Place at) noexcept { return memory(tier, device_of(at)); }
  std::uint32_t devices() const noexcept { return static_cast<std::uint32_t>(devices_.size()); }
  DiskTier& disk() noexcept { return disk_; }
  const CacheCounts& counts() const noexcept { return counts_; }
  const Reservations& reservations() const noexcept { return reservations_; }
  std::size_t leases() const noexcept { return leases_.size(); }
  struct SessionCounts {
    std::uint64_t leases = 0, leased_blocks = 0;
  };
  SessionCounts held_by(SessionId session) const;
  // Blocks of leases that have not ended: looked up, and not counted yet.
  std::uint64_t leased_blocks() const noexcept { return leased_blocks_; }
  // About once a second, `now` in seconds from 1 up.
  void pass_time(std::uint32_t now);

 private:
  struct Leased {
    BlockId block = kNoBlock;  // kNoBlock: failed
    Tier tier = Tier::host;
    bool pending = false;
    BlockId counted{};       // as it was granted, for the user's share
    std::uint32_t part = 0;  // of the device tier: the GPU
    Tier from = Tier::host;  // where it was
  };
  struct Lease {
    SessionId session;  // 0: released; it ends when the last of its disk reads does
    std::uint16_t ns;
    std::vector<Leased> blocks;
    UserId user;
  };
  struct SessionLeases {
    std::vector<LeaseId> ids;
    std::size_t blocks = 0;
  };
  // Of all its sessions, until the last of its leases has ended.
  struct UserHolds {
    HoldTable table;
    std::size_t leases = 0;
    std::size_t blocks = 0;                                         // each once a lease
    std::map<std::pair<Tier, std::uint32_t>, std::uint64_t> bytes;  // each block once
  };
  struct Waiter {
    LeaseId lease;
    std::uint32_t block;
  };

  struct Event {
    SessionId session;
    LeaseId lease;
    Landed landed;
  };

  UserId user_of(SessionId session) const;
  bool hold(UserHolds& of_user, BlockId id, Tier tier);
  void unhold(UserHolds& of_user, BlockId id, Tier tier);
  void remember(std::uint16_t ns);
  void spoil(BlockId id, TierSet tiers);
  bool holds_in(BlockId id, Tier tier);
  void forget_misfits(std::span<const std::byte> encoded);
  void forget_others_orphans(std::span<const std::byte> encoded);
  bool within_share(UserHolds& of_user, const Leased& leased) const;
  static void uncount(UserHolds& of_user, const Leased& leased);
  std::optional<Leased> hold_in_memory(UserHolds& of_user, BlockId id, std::uint32_t device);
  void note_access(const std::vector<Leased>& held, Grant& grant);
  void seen_again(BlockId id);
  std::vector<Event> hand_over(BlockId id, std::span<const Waiter> waiters, bool good);
  bool start_load(BlockId id);
  void loaded(BlockId id, Place to, const Result<void>& result);
  void end_lease(const Lease& lease);
  void close(LeaseId id, Lease& lease, std::uint32_t usable);
  void end_or_wait(LeaseId id, Lease& lease);
  void end_leases();
  void settle(BlockId id);
  // block_room.cc
  bool may_take(const MemoryTier& tier, TenantId needy, TenantId from, std::uint64_t bytes) const;
  std::optional<Place> room(MemoryTier& tier, TenantId tenant, std::uint64_t record_bytes);
  bool make_quota_room(MemoryTier& tier, TenantId tenant, std::uint64_t record_bytes);
  void evict(MemoryTier& tier, BlockId id, Removal why);
  bool may_evict_all_in(const MemoryTier& tier, ExtentId extent, TenantId tenant) const;
  bool may_empty(const MemoryTier& tier, ExtentId extent, TenantId tenant) const;
  std::optional<ExtentId> extent_to_empty(MemoryTier& tier, TenantId tenant,
                                          std::uint64_t record_bytes);
  enum class Emptied { gone, more, stays };
  Emptied empty_some(MemoryTier& tier, Removal why);
  bool empty_in_steps(MemoryTier& tier);
  BlockId victim(const MemoryTier& tier, TenantId tenant, std::uint64_t record_bytes,
                 bool own_too) const;
  bool empty_an_extent_for(MemoryTier& tier, TenantId tenant, std::uint64_t record_bytes);
  bool make_index_room(TenantId tenant);
  void shrink(MemoryTier& tier);
  // block_loans.cc
  struct Allowed {
    std::uint64_t own = 0;   // slots that it has
    std::uint64_t more = 0;  // that it may have besides
    std::uint64_t due = 0;   // that it is to have, whatever its process has
    std::uint64_t loan_bytes = 0,
                  loan_slots = 0;  // of each loan of the process, so that all have theirs
    bool by_tenant = false;        // it is the tenant's share that bounds it
  };
  Allowed allowed(const Borrower& who) const;
  void recall_from_process(const Borrower& who, const Allowed& allowed, Recalls& recalls) const;
  void recall_from_all(const Borrower& who, bool of_tenant, Recalls& recalls) const;
  std::optional<ExtentId> extent_to_recall(MemoryTier& tier, TenantId tenant,
                                           std::uint64_t record_bytes) const;
  void recall_extent(const MemoryTier& tier, ExtentId extent, Recalls& recalls) const;
  bool take_back(SlotName slot, SessionId session, Tier& tier);
  std::optional<ExtentId> easiest_to_empty(MemoryTier& tier) const;
  bool valid(const NewBlock& block, std::uint16_t ns) const;
  void seal(BlockId id, MemoryTier& tier, Place at, const Key& parent);
  void remove_from(BlockId id, Tier tier, Removal why);
  void remove_everywhere(BlockId id, Removal why);
  enum class Taken { yes, no, there_before };
  Taken take_slot(SlotName name, Tier tier, BlockId& id, std::uint16_t ns, const NewBlock& block,
                  bool good);
  ExtentId next_extent(std::uint32_t device);
  void end(std::span<const Reservations::Slot> slots);

  // memory_recovery.cc
  struct Adoption;
  void adopt_slots(storage::Extent& extent, Adoption& adoption);
  bool adopt_sealed(MemoryTier& tier, Place at, const storage::SlotEntry& entry,
                    Adoption& adoption);
  void adopt_reserved(MemoryTier& tier, Place at, const storage::SlotEntry& entry,
                      Adoption& adoption);
  std::optional<std::uint16_t> adopt_namespace(const NamespaceId& id, std::uint64_t record_bytes,
                                               Adoption& adoption);

  Options options_;
  Catalogue catalogue_;
  std::function<std::uint32_t()> next_number_;
  std::uint32_t next_extent_ = 1;
  std::vector<std::unique_ptr<MemoryTier>> devices_;  // by GPU; at least one, perhaps of no bytes
  MemoryTier host_;
  DiskTier disk_;
  Pins pins_;
  Reservations reservations_;
  std::unordered_map<LeaseId, Lease> leases_;
  std::unordered_map<SessionId, SessionLeases> leases_of_;
  std::deque<Lease> ending_;      // closed, their holds still there
  std::size_t ended_blocks_ = 0;  // since there was a turn for more
  bool ending_later_ = false;
  std::unordered_map<SessionId, UserId> user_of_;
  std::unordered_map<UserId, UserHolds> holds_of_;
  std::unordered_map<std::uint32_t, std::vector<Waiter>> loading_;  // by BlockId
  LeaseId next_lease_ = 1;
  bool shrink_goes_on_ = false;
  std::uint64_t leased_blocks_ = 0;
  std::uint64_t clock_ = 1;  // counts leases and commits
  CacheCounts counts_;
  std::vector<std::pair<BlockId, Key>> owed_;  // between adopt() and recover(): with their parents
};

constexpr SlotName slot_name(Place at) noexcept {
  return static_cast<std::uint64_t>(at.container) << 32 | at.slot;
}
constexpr Place place_named(SlotName slot) noexcept {
  return {static_cast<std::uint32_t>(slot >> 32), static_cast<std::uint32_t>(slot)};
}

}  // namespace kvtier::daemon
