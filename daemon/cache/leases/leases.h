// Leases: what is held for whom. Owned by the control thread.
//
// Every block of a lease is held in the tier it was granted in, or waits for its read, or has
// failed; nothing that is held is evicted or written over. A lease that is closed while it still
// waits ends with the last of its reads, so that its blocks take their places in the eviction order
// together, whatever order they land in. What was looked up is counted once, when the lease is
// closed, and before that in nobody's lookups.
//
// It evicts nothing itself and knows no client but by number: whoever owns the sessions hears of
// blocks that land (on_ready).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "daemon/cache/leases/loads.h"
#include "daemon/cache/leases/user_holds.h"
#include "daemon/cache/tiers/slot_name.h"

namespace kvtier::daemon {

class Leases {
 public:
  struct Options {
    std::uint32_t per_session_max = 0, per_user_max = 0;  // leases
  };
  // All of these outlive this; so does `later`, which may be set after this has been made.
  Leases(Options options, Catalogue& catalogue, MemoryTiers& memory, DiskTier& disk,
         RemoteTier& remote, Placements& placements, Loads& loads, UserHolds& users,
         CacheCounts& counts, const Later& later);
  Leases(const Leases&) = delete;

  struct Grant {
    LeaseId lease = 0;  // 0: nothing granted
    std::vector<SlotName>
        slots;                // one a block granted; 0: on its way from disk, on_ready() follows
    std::vector<Tier> tiers;  // where each block was
  };
  // Holds the leading blocks that are there, none past the session's bounds. Blocks on disk, or in
  // the remote tier, start moving to the host tier. `device`: the session's GPU, or kNoDevice; what
  // lies on another one is served from where else it is. `looked_up`: blocks of the prompt that
  // could have been cached; those that are not granted are misses. `ahead`: of a request that is
  // still to come, and counted among no lookups. `answer` is called with the grant as soon as
  // everything is held: whoever asked does not wait until the use has been noted.
  using Answer = std::function<void(const Grant&)>;
  Grant lease(SessionId session, std::uint16_t ns, std::span<const Key> keys, std::uint32_t device,
              std::uint32_t looked_up, bool ahead = false, const Answer& answer = {});
  // Blocks that a client looked up in vain, without asking for a lease.
  void missed(std::uint16_t ns, std::uint64_t blocks) noexcept {
    catalogue_.namespaces()[ns].lookups.misses += blocks;
  }
  // False, and counted, if the session has no such lease. `usable`: how many of its leading blocks
  // came in time and held, as the client found.
  static constexpr std::uint32_t kAllUsable = ~0U;
  bool release(SessionId session, LeaseId lease, std::uint32_t usable);
  void release_all(SessionId session);

  struct Landed {
    std::uint32_t block;  // index in the lease
    SlotName slot;        // 0: failed
  };
  // Blocks of a lease have come from disk, or failed.
  std::function<void(SessionId, LeaseId, std::span<const Landed>)> on_ready;

  std::size_t size() const noexcept { return leases_.size(); }
  // Blocks of leases that have not been closed: looked up, and not counted yet.
  std::uint64_t blocks() const noexcept { return blocks_; }
  struct SessionCounts {
    std::uint64_t leases = 0, leased_blocks = 0;
  };
  SessionCounts held_by(SessionId session) const;
  // Every block that the session holds now, once a lease: visit(block, tier).
  template <class Visit>
  void each_held_by(SessionId session, Visit&& visit) const {
    const auto of = leases_of_.find(session);
    if (of == leases_of_.end()) return;
    for (const LeaseId id : of->second.ids) {
      for (const Leased& leased : leases_.at(id).blocks) {
        if (leased.block != kNoBlock && !leased.pending) visit(leased.block, leased.tier);
      }
    }
  }

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
    SessionId session;  // 0: closed; it ends when the last of its disk reads does
    std::uint16_t ns;
    std::vector<Leased> blocks;
    UserId user;
    bool ahead = false;
  };
  struct OfSession {
    std::vector<LeaseId> ids;
    std::size_t blocks = 0;
  };

  std::optional<Leased> hold_in_memory(UserHolds::User& user, BlockId id, std::uint32_t device);
  void await_reads(std::vector<Leased>& held, SessionId session, std::uint16_t ns, UserId user);
  void fill(Grant& grant, const std::vector<Leased>& held) const;
  // `prompt`: what the blocks are used for; none, if that is still to come.
  void note_access(const std::vector<Leased>& held, std::span<const BlockId> prefix, UserId user,
                   const std::optional<Prompt>& prompt);
  void landed(BlockId id, std::span<const Loads::Waiter> waiters, bool good);
  void settled(BlockId id, std::span<const Loads::Waiter> waiters);
  void close(LeaseId id, Lease& lease, std::uint32_t usable);
  void end_or_wait(LeaseId id, Lease& lease);
  void end_some();
  void end(const Lease& lease);

  Options options_;
  Catalogue& catalogue_;
  MemoryTiers& memory_;
  DiskTier& disk_;
  RemoteTier& remote_;
  Placements& placements_;
  Loads& loads_;
  UserHolds& users_;
  CacheCounts& counts_;
  const Later& later_;
  std::unordered_map<LeaseId, Lease> leases_;
  std::unordered_map<SessionId, OfSession> leases_of_;
  std::deque<Lease> ending_;      // closed, their holds still there
  std::size_t ended_blocks_ = 0;  // since there was a turn for more
  bool ending_later_ = false;
  LeaseId next_ = 1;
  std::uint64_t blocks_ = 0;
};

}  // namespace kvtier::daemon
