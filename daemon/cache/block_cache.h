// The cache: what leases, reservations, commits and evictions do to the tiers. All policy is here;
// I/O and sockets are elsewhere. Owned by the control thread; nothing here waits.
//
// This class only owns the parts, wires them and is what sessions and the server talk to. Each part
// has its state and its rules in its own header, and knows those below it:
//
//   Adoption  CachedNamespaces  BadReports    a restart; namespaces; what clients find bad
//   Hints (Prefetches)                        what clients expect of the time ahead
//   Commits   Leases (UserHolds, Loads)       what becomes visible; what is held, and for whom
//   Loans     Recalls (LoanShares)            slots that clients fill, and whose come home
//   Room (Emptying, Eviction)  BlockRemoval   what goes so that something has a place, or for good
//   Placements  Pins                          blocks in slots; what administrators keep there
//   MemoryTiers  DiskTier  RemoteTier  Catalogue   where things are
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "daemon/cache/adoption.h"
#include "daemon/cache/bad_reports.h"
#include "daemon/cache/block_removal.h"
#include "daemon/cache/cached_namespaces.h"
#include "daemon/cache/catalogue/cache_counts.h"
#include "daemon/cache/catalogue/catalogue.h"
#include "daemon/cache/catalogue/selection.h"
#include "daemon/cache/commits.h"
#include "daemon/cache/hints/hints.h"
#include "daemon/cache/leases/leases.h"
#include "daemon/cache/loans/loans.h"
#include "daemon/cache/loans/recalls.h"
#include "daemon/cache/pins.h"
#include "daemon/cache/remote/remote_tier.h"
#include "daemon/cache/room/room.h"
#include "daemon/cache/tiers/disk_tier.h"
#include "daemon/cache/tiers/memory_tiers.h"
#include "daemon/limits.h"
#include "kvtier/result.h"

namespace kvtier::daemon {

class BlockCache {
 public:
  struct Options {
    std::uint32_t blocks_max = 0;
    MemoryTier::Options device, host;  // the device tier's of each GPU
    DiskTier::Options disk;
    RemoteTier::Options remote{};
    std::uint32_t pinned_percent_max = 25;  // of each part of a tier
    Tenants tenants{};
    EvictionPolicy policy = EvictionPolicy::lru;
    std::uint32_t leases_per_session = limits::kLeasesPerSessionMax;
    std::uint32_t leases_per_user = limits::kLeasesPerUserMax;
    // Of what its tenant may have of a memory tier, the part that one user may hold leased.
    std::uint32_t leased_percent = 100;
    Hints::Options hints{};
  };
  struct Ports {
    std::vector<storage::MemoryExtents*> devices;  // one a GPU; none: no device tier
    storage::MemoryExtents* host = nullptr;
    std::vector<DiskTier::Port> disks;  // none: no disk tier
    DirectoryWriter* directory = nullptr;
    // Numbers for extents, never the same twice; without it they are counted from 1.
    std::function<std::uint32_t()> next_extent = {};
    storage::RemoteStore* remote = nullptr;  // null: no remote tier
  };
  BlockCache(const Options& options, Ports ports);
  BlockCache(const BlockCache&) = delete;

  // ---- a restart

  using Left = Adoption::Left;
  // Takes over what an earlier daemon left in memory, before recover(): sealed slots become blocks
  // again, all others stay quarantined. Returns the processes that may be writing to those,
  // end_process() of each of which is owed; one with start time 0 is the earlier daemon's disk
  // reads. Errors: those of the stores.
  Result<std::vector<ProcessId>> adopt(Left left);
  // Takes over what the disk holds. Once, before anything else but adopt().
  Result<void> recover();

  // ---- namespaces (CachedNamespaces)

  Result<std::uint16_t> open_namespace(std::span<const std::byte> encoded, UserId owner = kNoUser) {
    return namespaces_.open(encoded, owner);
  }
  bool knows_namespace(std::span<const std::byte> encoded) const {
    return namespaces_.knows(encoded);
  }
  void forget_unused_namespaces() { namespaces_.forget_unused(); }
  std::vector<std::uint16_t> close_namespaces(const NamespaceFilter& filter) {
    return namespaces_.close(filter);
  }

  // ---- sessions

  // Whose the session is: what all sessions of a user hold is counted together. One that was never
  // said to begin is a user of its own.
  void begin_session(SessionId session, UserId user) { users_.begin_session(session, user); }
  // Leases end and reservations are quarantined until end_process().
  void end_session(SessionId session);
  void end_process(ProcessId process) { loans_.end_process(process); }

  // ---- leases (Leases)

  using Grant = Leases::Grant;
  using Landed = Leases::Landed;
  using SessionCounts = Leases::SessionCounts;
  static constexpr std::uint32_t kAllUsable = Leases::kAllUsable;
  Grant lease(SessionId session, std::uint16_t ns, std::span<const Key> keys,
              std::uint32_t device = 0, std::uint32_t looked_up = 0, bool ahead = false,
              const Leases::Answer& answer = {}) {
    return leases_.lease(session, ns, keys, device, looked_up, ahead, answer);
  }
  void missed(std::uint16_t ns, std::uint64_t blocks) noexcept { leases_.missed(ns, blocks); }
  bool release(SessionId session, LeaseId lease, std::uint32_t usable = kAllUsable) {
    return leases_.release(session, lease, usable);
  }
  void release_all(SessionId session) { leases_.release_all(session); }
  std::size_t leases() const noexcept { return leases_.size(); }
  SessionCounts held_by(SessionId session) const { return leases_.held_by(session); }
  std::uint64_t leased_blocks() const noexcept { return leases_.blocks(); }

  // ---- slots that a session may fill (Loans, Recalls)

  using Recall = daemon::Recall;
  using Recalls = daemon::Recalls::BySession;
  Borrower borrower(SessionId session, ProcessId process, std::uint16_t ns, Tier tier,
                    std::uint32_t device, std::uint64_t client) const {
    return loans_.borrower(session, process, ns, tier, device, client);
  }
  std::vector<SlotName> lend(const Borrower& to, std::uint32_t count, bool contended = false) {
    return loans_.lend(to, count, contended);
  }
  std::vector<SlotName> reserve(SessionId session, ProcessId process, std::uint16_t ns, Tier tier,
                                std::uint32_t count, std::uint32_t device = 0,
                                std::uint64_t client = 0) {
    return lend(borrower(session, process, ns, tier, device, client), count);
  }
  void abandon(SessionId session, SlotName slot) { loans_.abandon(session, slot); }
  void let_go(ProcessId process, std::uint64_t client) { loans_.let_go(process, client); }
  bool has_less_than_due(const Borrower& who) const { return loans_.has_less_than_due(who); }
  // See Reservations::set_asking().
  void set_asking(const Borrower& who, bool asking) { loans_.set_asking(who, asking); }
  bool recall_for(const Borrower& who, Recalls& recalls) { return recalls_.add_for(who, recalls); }
  void recall_for_cap(Recalls& recalls) { recalls_.add_for_cap(recalls); }
  // Nobody waits for slots any more: an extent that was to go once they are home stays.
  void stop_waiting_for_loans() { emptying_.stop_awaiting_loans(); }
  const Reservations& reservations() const noexcept { return reservations_; }

  // ---- blocks that become visible (Commits)

  using NewBlock = Commits::NewBlock;
  bool commit(SessionId session, std::uint16_t ns, const NewBlock& block);
  // The block that is being committed right now; null outside of commit().
  const NewBlock* committing() const noexcept { return committing_; }

  // ---- hints (Hints)

  void hint(SessionId session, std::uint16_t ns, std::span<const Key> keys, const Hint& hint,
            std::uint32_t device, Hints::Time now = std::chrono::steady_clock::now()) {
    hints_.take({users_.user_of(session), ns, keys, hint, device}, now);
  }
  // What is kept until `now` is so no more; in steps.
  void expire_hints(Hints::Time now);
  Hints& hints() noexcept { return hints_; }
  const Hints& hints() const noexcept { return hints_; }

  // ---- blocks that go (Room, Emptying, BlockRemoval, BadReports)

  bool shrink() { return emptying_.shrink(); }
  bool shrink_goes_on() const noexcept { return emptying_.shrink_goes_on(); }
  Result<void> set_limits(TenantId tenant, Tier tier, TenantLimits limits) {
    return room_.set_limits(tenant, tier, limits);
  }
  // About once a second.
  void trim() { room_.trim(); }
  std::uint64_t report_bad(SessionId session, std::span<const std::uint16_t> namespaces,
                           std::span<const Key> keys) {
    return reports_.report(session, namespaces, keys);
  }
  using Removed = BlockRemoval::Removed;
  void remove(std::span<const BlockId> blocks, TierSet tiers, bool force, Removed& removed,
              Removal why = Removal::drop) {
    removal_.remove(blocks, tiers, force, removed, why);
  }
  std::uint64_t drop(std::optional<std::uint16_t> ns, TierSet tiers, Removal why = Removal::drop) {
    return removal_.drop(ns, tiers, why);
  }
  // As DiskTier::verify().
  Result<void> verify_on_disk(BlockId id, std::function<void(Result<void>)> done) {
    return disk_.verify(id, std::move(done));
  }
  void flush(std::function<void(Result<void>)> done) { disk_.flush(std::move(done)); }

  Pins& pins() noexcept { return pins_; }
  const Pins& pins() const noexcept { return pins_; }
  std::uint64_t pinned_bytes_max(Tier tier, std::uint32_t device) const noexcept;

  // ---- what whoever owns it hears

  // Blocks of a lease have come from disk, or failed.
  std::function<void(SessionId, LeaseId, std::span<const Landed>)> on_ready;
  // Without it, what is done in steps is done at once.
  Later later;
  // An extent that was emptied in steps has gone: there is room.
  std::function<void()> on_room;
  // A namespace is to be remembered: a block of it is there, or about to be.
  std::function<void(const KnownNamespace&)> on_namespace;

  // ---- the tiers and what is in them

  Catalogue& catalogue() noexcept { return catalogue_; }
  std::uint64_t clock() const noexcept { return catalogue_.clock(); }
  // `device`: of the device tier, the part on this GPU.
  MemoryTier& memory(Tier tier, std::uint32_t device = 0) noexcept {
    return memory_.of(tier, device);
  }
  MemoryTier& memory(Tier tier, Place at) noexcept { return memory_.of(tier, at); }
  std::uint32_t devices() const noexcept { return memory_.devices(); }
  DiskTier& disk() noexcept { return disk_; }
  RemoteTier& remote() noexcept { return remote_; }
  // What was erased from these tiers stays so: from the disk; and from the remote tier, as far as
  // this host can say.
  void erase_for_good(const std::vector<storage::Erasure>& what, TierSet tiers) {
    if (tiers.has(Tier::disk)) disk_.erase_for_good(what);
    if (tiers.has(Tier::remote)) remote_.bar(what);
  }
  const CacheCounts& counts() const noexcept { return counts_; }
  // About once a second, `now` in seconds from 1 up.
  void pass_time(std::uint32_t now);

 private:
  std::uint32_t pinned_percent_max_;
  CacheCounts counts_;
  Catalogue catalogue_;
  MemoryTiers memory_;
  DiskTier disk_;
  RemoteTier remote_;
  Pins pins_;
  Placements placements_;
  BlockRemoval removal_;
  CachedNamespaces namespaces_;
  Eviction eviction_;
  Emptying emptying_;
  Room room_;
  Reservations reservations_;
  LoanShares shares_;
  Loans loans_;
  daemon::Recalls recalls_;
  UserHolds users_;
  Loads loads_;
  Leases leases_;
  Hints hints_;
  Commits commits_;
  BadReports reports_;
  const NewBlock* committing_ = nullptr;
  bool expiring_hints_ = false;                // in a later turn
  std::vector<std::pair<BlockId, Key>> owed_;  // to the disk, between adopt() and recover()
};

}  // namespace kvtier::daemon
