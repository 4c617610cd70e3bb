#include "daemon/cache/leases/leases.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

Leases::Leases(Options options, Catalogue& catalogue, MemoryTiers& memory, DiskTier& disk,
               RemoteTier& remote, Placements& placements, Loads& loads, UserHolds& users,
               CacheCounts& counts, const Later& later)
    : options_(options),
      catalogue_(catalogue),
      memory_(memory),
      disk_(disk),
      remote_(remote),
      placements_(placements),
      loads_(loads),
      users_(users),
      counts_(counts),
      later_(later) {
  loads_.on_landed = [this](BlockId id, std::span<const Loads::Waiter> waiters, bool good) {
    landed(id, waiters, good);
  };
  loads_.on_settled = [this](BlockId id, std::span<const Loads::Waiter> waiters) {
    settled(id, waiters);
  };
}

// ---- granting

Leases::Grant Leases::lease(SessionId session, std::uint16_t ns, std::span<const Key> keys,
                            std::uint32_t device, std::uint32_t looked_up, bool ahead,
                            const Answer& answer) {
  OfSession& of_session = leases_of_[session];
  const UserId user = users_.user_of(session);
  const auto has = users_.sum_of(user);
  const std::uint64_t asked = ahead ? 0 : std::max<std::uint64_t>(looked_up, keys.size());
  Grant grant;
  if (of_session.ids.size() >= options_.per_session_max || has.leases >= options_.per_user_max ||
      catalogue_.namespaces()[ns].closed) {
    missed(ns, asked);
    if (answer) answer(grant);
    return grant;
  }
  keys = keys.first(std::min({keys.size(), limits::kBlocksLeasedPerSessionMax - of_session.blocks,
                              limits::kBlocksLeasedPerUserMax - has.blocks}));
  // First everything in memory is held, so that making room for what is on disk cannot evict it.
  std::vector<Leased> held;
  std::vector<BlockId> found(keys.size());
  found.resize(catalogue_.find_prefix(ns, keys, found));
  held.reserve(found.size());
  UserHolds::User& of_user = users_.begin_lease(user, ns, found.size());
  bool all_there = true;
  for (const BlockId id : found) {
    const auto leased = hold_in_memory(of_user, id, device);
    if (!leased) break;
    all_there = all_there && !leased->pending;
    held.push_back(*leased);
  }
  users_.add_blocks(of_user, held.size());
  if (!all_there) {
    catalogue_.leave_orders(std::span(found).first(held.size()));
    await_reads(held, session, ns, user);
  }
  const auto prefix = std::span(found).first(held.size());
  if (!held.empty()) grant.lease = next_++;
  fill(grant, held);
  if (answer) answer(grant);
  catalogue_.leave_orders(prefix);
  if (!ahead) missed(ns, asked - held.size());
  if (held.empty()) {
    end({session, ns, {}, user});
    return grant;
  }
  if (!ahead) blocks_ += held.size();
  std::optional<Prompt> prompt;
  if (!ahead) {
    prompt = {static_cast<std::uint32_t>(asked), catalogue_.namespaces()[ns].layout.block_tokens};
  }
  note_access(held, prefix, user, prompt);
  of_session.ids.push_back(grant.lease);
  of_session.blocks += held.size();
  leases_.emplace(grant.lease, Lease{session, ns, std::move(held), user, ahead});
  if (disk_.minds_use()) {
    for (const BlockId id : prefix) disk_.seen_again(id);
  }
  remote_.writes().seen_again(prefix);
  return grant;
}

// Where the user holds its share of the device tier already, the host's copy serves as well, and
// so does one that is yet to be read from disk: a share bounds what is held, not how long a prefix
// may be.
std::optional<Leases::Leased> Leases::hold_in_memory(UserHolds::User& user, BlockId id,
                                                     std::uint32_t device) {
  TierSet tiers = catalogue_.reachable(id);
  if (tiers.has(Tier::device) && catalogue_.device(id, Tier::device) != device)
    tiers = tiers.without(Tier::device);
  for (const Tier tier : {Tier::device, Tier::host}) {
    const std::uint32_t part = tier == Tier::device ? device : 0;
    if (tiers.has(tier) && users_.count_held(user, id, tier, part))
      return Leased{id, tier, false, id, part, tier};
  }
  const auto from = loads_.source(tiers);
  if (!from || tiers.has(Tier::host)) return std::nullopt;
  if (!users_.count(user, id, Tier::host, 0)) return std::nullopt;
  return Leased{id, Tier::host, true, id, 0, *from};
}

// The reads of the lease that is about to have the next number. Where one cannot begin, what was to
// be held from there on ends at once, as a lease of its own.
void Leases::await_reads(std::vector<Leased>& held, SessionId session, std::uint16_t ns,
                         UserId user) {
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (!held[i].pending) continue;
    if (!loads_.ensure(held[i].block)) {
      const std::vector<Leased> rest(held.begin() + static_cast<std::ptrdiff_t>(i), held.end());
      held.resize(i);
      users_.begin_lease(user, ns, 0);
      return end({session, ns, rest, user});
    }
    loads_.wait(held[i].block, {next_, static_cast<std::uint32_t>(i)});
  }
}

void Leases::fill(Grant& grant, const std::vector<Leased>& held) const {
  grant.slots.reserve(held.size());
  grant.tiers.reserve(held.size());
  for (const Leased& leased : held) {
    const Place at = catalogue_.block(leased.block).places[index_of(leased.from)];
    grant.slots.push_back(leased.pending ? 0 : slot_name(at));
    grant.tiers.push_back(leased.from);
  }
}

void Leases::note_access(const std::vector<Leased>& held, std::span<const BlockId> prefix,
                         UserId user, const std::optional<Prompt>& prompt) {
  const std::uint64_t now = catalogue_.tick();
  const std::uint64_t bytes = catalogue_.record_bytes(prefix.front());
  for (const Leased& leased : held) {
    const Block& block = catalogue_.block(leased.block);
    const auto gap = catalogue_.ages().of(block.last_access);
    if (gap.known) counts_.reuse_gap.add(gap.seconds);
    if (prompt) counts_.hit_bytes[index_of(leased.from)] += bytes;
    memory_.set_last_access(block, now);
    disk_.touched(leased.block);
  }
  catalogue_.use(prefix, user, now, prompt);
}

// ---- reads that land

void Leases::landed(BlockId id, std::span<const Loads::Waiter> waiters, bool good) {
  for (const Loads::Waiter& waiter : waiters) {
    const auto lease = leases_.find(waiter.lease);
    if (lease == leases_.end()) continue;
    Leased& leased = lease->second.blocks[waiter.block];
    leased.pending = false;
    if (!good || !users_.hold(users_.known(lease->second.user), id, Tier::host))
      leased.block = kNoBlock;
  }
}

void Leases::settled(BlockId id, std::span<const Loads::Waiter> waiters) {
  struct Event {
    SessionId session;
    LeaseId lease;
    Landed landed;
  };
  std::vector<Event> events;
  for (const Loads::Waiter& waiter : waiters) {
    const auto lease = leases_.find(waiter.lease);
    if (lease == leases_.end()) continue;
    if (lease->second.session == 0) {
      end_or_wait(waiter.lease, lease->second);
      continue;
    }
    const bool there = lease->second.blocks[waiter.block].block != kNoBlock;
    const SlotName slot =
        there ? slot_name(catalogue_.block(id).places[index_of(Tier::host)]) : SlotName{0};
    events.push_back({lease->second.session, waiter.lease, {waiter.block, slot}});
  }
  for (const Event& event : events) on_ready(event.session, event.lease, {&event.landed, 1});
}

// ---- the end of leases

bool Leases::release(SessionId session, LeaseId lease, std::uint32_t usable) {
  const auto found = leases_.find(lease);
  if (found == leases_.end() || found->second.session != session) {
    ++counts_.unknown_releases;
    return false;
  }
  OfSession& of_session = leases_of_.at(session);
  std::erase(of_session.ids, lease);
  of_session.blocks -= found->second.blocks.size();
  close(lease, found->second, usable);
  return true;
}

void Leases::release_all(SessionId session) {
  const auto of = leases_of_.find(session);
  if (of == leases_of_.end()) return;
  for (const LeaseId lease : of->second.ids) close(lease, leases_.at(lease), kAllUsable);
  leases_of_.erase(of);
}

// The one place where leased blocks are counted: each lease passes it once, since only one that
// nobody has closed has a session. A block that came too late or did not hold ends the prefix, and
// with it all behind it were of no use.
void Leases::close(LeaseId id, Lease& lease, std::uint32_t usable) {
  KVTIER_CHECK(lease.session != 0);
  if (lease.ahead) return end_or_wait(id, lease);
  Lookups& lookups = catalogue_.namespaces()[lease.ns].lookups;
  std::uint32_t served = 0;
  for (const Leased& leased : lease.blocks) {
    if (served == usable || leased.pending || leased.block == kNoBlock) break;
    ++lookups.hits[index_of(leased.from)];
    ++served;
  }
  lookups.misses += lease.blocks.size() - served;
  blocks_ -= lease.blocks.size();
  end_or_wait(id, lease);
}

void Leases::end_or_wait(LeaseId id, Lease& lease) {
  lease.session = 0;
  if (std::ranges::any_of(lease.blocks, &Leased::pending)) return;
  ending_.push_back(std::move(lease));
  leases_.erase(id);
  end_some();
}

// One session may have a million blocks leased, and end: so many at a time.
void Leases::end_some() {
  while (!ending_.empty() && (ended_blocks_ < limits::kEndStep || !later_)) {
    const Lease ended = std::move(ending_.front());
    ending_.pop_front();
    ended_blocks_ += ended.blocks.size();
    end(ended);
  }
  if (ended_blocks_ < limits::kEndStep || !later_ || std::exchange(ending_later_, true)) return;
  later_([this] {
    ending_later_ = false;
    ended_blocks_ = 0;
    end_some();
  });
}

void Leases::end(const Lease& lease) {
  std::vector<BlockId> prefix;
  prefix.reserve(lease.blocks.size());
  UserHolds::User& user = users_.known(lease.user);
  for (const Leased& leased : lease.blocks) {
    if (leased.block != kNoBlock) prefix.push_back(leased.block);
  }
  // The last first: what stands behind it in the table need not be looked at then.
  for (auto leased = lease.blocks.rbegin(); leased != lease.blocks.rend(); ++leased) {
    users_.uncount(user, leased->counted, leased->tier, leased->part,
                   leased->block != kNoBlock && !leased->pending);
  }
  users_.end_lease(lease.user, lease.blocks.size());
  catalogue_.enter_orders(prefix);
  for (const BlockId id : prefix) placements_.settle(id);
}

Leases::SessionCounts Leases::held_by(SessionId session) const {
  const auto found = leases_of_.find(session);
  if (found == leases_of_.end()) return {};
  return {found->second.ids.size(), found->second.blocks};
}

}  // namespace kvtier::daemon
