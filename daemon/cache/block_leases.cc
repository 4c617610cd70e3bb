// Leases: what is held for whom, and the blocks on their way from disk.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/points.h"
#include "daemon/cache/block_cache.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

BlockCache::Grant BlockCache::lease(SessionId session, std::uint16_t ns, std::span<const Key> keys,
                                    std::uint32_t device, std::uint32_t looked_up) {
  SessionLeases& of_session = leases_of_[session];
  const UserId user = user_of(session);
  const auto known = holds_of_.find(user);
  const std::size_t leases = known == holds_of_.end() ? 0 : known->second.leases;
  const std::size_t blocks = known == holds_of_.end() ? 0 : known->second.blocks;
  const std::uint64_t asked = std::max<std::uint64_t>(looked_up, keys.size());
  if (of_session.ids.size() >= options_.leases_per_session || leases >= options_.leases_per_user ||
      catalogue_.namespaces()[ns].closed) {
    missed(ns, asked);
    return {};
  }
  keys = keys.first(std::min({keys.size(), limits::kBlocksLeasedPerSessionMax - of_session.blocks,
                              limits::kBlocksLeasedPerUserMax - blocks}));
  // First everything in memory is held, so that making room for what is on disk cannot evict it.
  std::vector<Leased> held;
  std::vector<BlockId> found(keys.size());
  found.resize(catalogue_.find_prefix(ns, keys, found));
  held.reserve(found.size());
  UserHolds& of_user = holds_of_[user];
  ++of_user.leases;
  for (const BlockId id : found) {
    const auto leased = hold_in_memory(of_user, id, device);
    if (!leased) break;
    held.push_back(*leased);
  }
  of_user.blocks += held.size();
  const LeaseId lease_id = next_lease_;
  for (std::size_t i = 0; i < held.size(); ++i) {
    const Leased& leased = held[i];
    if (!leased.pending) continue;
    if (!catalogue_.block(leased.block).loading && !start_load(leased.block)) {
      const std::vector<Leased> rest(held.begin() + static_cast<std::ptrdiff_t>(i), held.end());
      held.resize(i);
      ++of_user.leases;  // for the one that ends here
      end_lease({session, ns, rest, user});
      break;
    }
    loading_[leased.block.value].push_back({lease_id, static_cast<std::uint32_t>(i)});
  }
  Grant grant;
  missed(ns, asked - held.size());
  if (held.empty()) {
    end_lease({session, ns, {}, user});
    return grant;
  }
  leased_blocks_ += held.size();
  grant.lease = next_lease_++;
  note_access(held, grant);
  of_session.ids.push_back(grant.lease);
  of_session.blocks += held.size();
  leases_.emplace(grant.lease, Lease{session, ns, std::move(held), user});
  if (options_.disk.admission != Admission::second_hit) return grant;
  for (const BlockId id : std::span(found).first(grant.slots.size())) seen_again(id);
  return grant;
}

UserId BlockCache::user_of(SessionId session) const {
  const auto known = user_of_.find(session);
  return known == user_of_.end() ? kUsersOfSessions + session : known->second;
}

// Where the user holds its share of the device tier already, the host's copy serves as well, and
// so does one that is yet to be read from disk: a share bounds what is held, not how long a prefix
// may be.
std::optional<BlockCache::Leased> BlockCache::hold_in_memory(UserHolds& of_user, BlockId id,
                                                             std::uint32_t device) {
  TierSet tiers = catalogue_.reachable(id);
  if (tiers.has(Tier::device) && catalogue_.device(id, Tier::device) != device)
    tiers = tiers.without(Tier::device);
  for (const Tier tier : {Tier::device, Tier::host}) {
    const Leased leased{id, tier, false, id, tier == Tier::device ? device : 0, tier};
    if (!tiers.has(tier) || !within_share(of_user, leased)) continue;
    if (hold(of_user, id, tier)) return leased;
    uncount(of_user, leased);
  }
  if (!tiers.has(Tier::disk) || tiers.has(Tier::host)) return std::nullopt;
  const Leased leased{id, Tier::host, true, id, 0, Tier::disk};
  if (within_share(of_user, leased)) return leased;
  return std::nullopt;
}

// Counts the block for the user, once for all its leases; false, and not counted, where that is
// more than it may hold of the tier. One block it may always hold.
bool BlockCache::within_share(UserHolds& of_user, const Leased& leased) const {
  const std::uint64_t name = HoldTable::name_of(leased.counted, leased.tier);
  if (HoldTable::Entry* const known = of_user.table.find(name)) {
    ++known->leases;
    return true;
  }
  const std::uint64_t bytes = catalogue_.record_bytes(leased.block);
  std::uint64_t& held = of_user.bytes[{leased.tier, leased.part}];
  if (options_.leased_percent < 100 && held != 0) {
    const MemoryTier& in = leased.tier == Tier::device ? *devices_[leased.part] : host_;
    const std::uint64_t all = in.allowance(catalogue_.tenant(leased.block));
    const std::uint64_t allowed =
        all / 100 * options_.leased_percent + all % 100 * options_.leased_percent / 100;
    if (held + bytes > allowed) return false;
  }
  held += bytes;
  of_user.table.add(name, bytes).leases = 1;
  return true;
}

void BlockCache::uncount(UserHolds& of_user, const Leased& leased) {
  HoldTable::Entry* const entry =
      of_user.table.find(HoldTable::name_of(leased.counted, leased.tier));
  if (--entry->leases != 0) return;
  of_user.bytes[{leased.tier, leased.part}] -= entry->bytes;
  of_user.table.erase(entry);
}

// A user is one hold of a block, so that none can use up the holds that there are for all.
bool BlockCache::hold(UserHolds& of_user, BlockId id, Tier tier) {
  HoldTable::Entry* const entry = of_user.table.find(HoldTable::name_of(id, tier));
  if (entry->held == 0 && !catalogue_.hold(id, tier)) return false;
  ++entry->held;
  return true;
}

void BlockCache::unhold(UserHolds& of_user, BlockId id, Tier tier) {
  HoldTable::Entry* const entry = of_user.table.find(HoldTable::name_of(id, tier));
  if (--entry->held == 0) catalogue_.unhold(id, tier);
}

BlockCache::SessionCounts BlockCache::held_by(SessionId session) const {
  const auto found = leases_of_.find(session);
  if (found == leases_of_.end()) return {};
  return {found->second.ids.size(), found->second.blocks};
}

void BlockCache::note_access(const std::vector<Leased>& held, Grant& grant) {
  ++clock_;
  std::vector<BlockId> prefix;
  prefix.reserve(held.size());
  grant.slots.reserve(held.size());
  grant.tiers.reserve(held.size());
  for (const Leased& leased : held) {
    prefix.push_back(leased.block);
    const Block& block = catalogue_.block(leased.block);
    const auto gap = catalogue_.ages().of(block.last_access);
    if (gap.known) counts_.reuse_gap.add(gap.seconds);
    catalogue_.set_last_access(leased.block, clock_);
    const Tier from = leased.from;
    grant.slots.push_back(leased.pending ? 0 : slot_name(block.places[index_of(from)]));
    grant.tiers.push_back(from);
    counts_.hit_bytes[index_of(from)] += catalogue_.record_bytes(leased.block);
    for (const Tier tier : {Tier::device, Tier::host}) {
      if (!block.tiers.has(tier)) continue;
      const Place at = block.places[index_of(tier)];
      memory(tier, at).table(at).set_last_access(at.slot, clock_);
    }
    disk_.touched(leased.block);
  }
  catalogue_.touch(prefix);
}

void BlockCache::seen_again(BlockId id) {
  const Block& block = catalogue_.block(id);
  if (!block.tiers.has(Tier::host) || block.doomed) return;
  const Place at = block.places[index_of(Tier::host)];
  disk_.seen_again(id, host_.table(at).entry(at.slot).parent);
}

bool BlockCache::start_load(BlockId id) {
  if (loading_.size() >= limits::kReadsWaitingMax) return false;
  const auto to = room(host_, catalogue_.tenant(id), catalogue_.record_bytes(id));
  if (!to) return false;
  host_.table(*to).set_reserved(to->slot, {static_cast<std::uint32_t>(::getpid())});
  catalogue_.set_loading(id, true);
  const auto sent = disk_.read(
      id, *to, [this, id, to = *to](const Result<void>& result) { loaded(id, to, result); });
  if (!sent) {
    catalogue_.set_loading(id, false);
    host_.give_back(*to);
    return false;
  }
  KVTIER_POINT("daemon.load.started");
  return true;
}

void BlockCache::loaded(BlockId id, Place to, const Result<void>& result) {
  catalogue_.set_loading(id, false);
  std::vector<Waiter> waiters;
  if (const auto found = loading_.find(id.value); found != loading_.end()) {
    waiters = std::move(found->second);
    loading_.erase(found);
  }
  const bool good = result.has_value() && !catalogue_.doomed(id);
  if (good && !catalogue_.block(id).tiers.has(Tier::host)) {
    seal(id, host_, to, catalogue_.parent(id));
  } else {
    host_.give_back(to);  // it failed, or a client has written the block meanwhile
  }
  const auto events = hand_over(id, waiters, good);
  KVTIER_POINT("daemon.load.landed");
  // What cannot be reached now may be good later; all else did not hold.
  if (!result && result.error().code != Errc::unavailable) {
    ++counts_.faults;
    (void)disk_.retire(id, result.error().code == Errc::corrupt ? Removal::corrupt : Removal::io);
  }
  settle(id);  // does nothing where retire() has removed the entry
  for (const Waiter& waiter : waiters) {
    const auto lease = leases_.find(waiter.lease);
    if (lease != leases_.end() && lease->second.session == 0)
      end_or_wait(waiter.lease, lease->second);
  }
  for (const Event& event : events) on_ready(event.session, event.lease, {&event.landed, 1});
}

std::vector<BlockCache::Event> BlockCache::hand_over(BlockId id, std::span<const Waiter> waiters,
                                                     bool good) {
  std::vector<Event> events;
  for (const Waiter& waiter : waiters) {
    const auto lease = leases_.find(waiter.lease);
    if (lease == leases_.end()) continue;
    Leased& leased = lease->second.blocks[waiter.block];
    leased.pending = false;
    if (!good || !hold(holds_of_.at(lease->second.user), id, Tier::host)) leased.block = kNoBlock;
    const SlotName slot =
        leased.block == kNoBlock ? 0 : slot_name(catalogue_.block(id).places[index_of(Tier::host)]);
    if (lease->second.session == 0) continue;
    events.push_back({lease->second.session, waiter.lease, {waiter.block, slot}});
  }
  return events;
}

bool BlockCache::release(SessionId session, LeaseId lease, std::uint32_t usable) {
  const auto found = leases_.find(lease);
  if (found == leases_.end() || found->second.session != session) {
    ++counts_.unknown_releases;
    return false;
  }
  SessionLeases& of_session = leases_of_.at(session);
  std::erase(of_session.ids, lease);
  of_session.blocks -= found->second.blocks.size();
  close(lease, found->second, usable);
  return true;
}

void BlockCache::release_all(SessionId session) {
  const auto of = leases_of_.find(session);
  if (of == leases_of_.end()) return;
  for (const LeaseId lease : of->second.ids) close(lease, leases_.at(lease), kAllUsable);
  leases_of_.erase(of);
}

void BlockCache::missed(std::uint16_t ns, std::uint64_t blocks) noexcept {
  catalogue_.namespaces()[ns].lookups.misses += blocks;
}

// The one place where leased blocks are counted: each lease passes it once, since only one that
// nobody has closed has a session. A block that came too late or did not hold ends the prefix, and
// with it all behind it were of no use.
void BlockCache::close(LeaseId id, Lease& lease, std::uint32_t usable) {
  KVTIER_CHECK(lease.session != 0);
  Lookups& lookups = catalogue_.namespaces()[lease.ns].lookups;
  std::uint32_t served = 0;
  for (const Leased& leased : lease.blocks) {
    if (served == usable || leased.pending || leased.block == kNoBlock) break;
    ++lookups.hits[index_of(leased.from)];
    ++served;
  }
  lookups.misses += lease.blocks.size() - served;
  leased_blocks_ -= lease.blocks.size();
  end_or_wait(id, lease);
}

// A lease whose reads are under way ends with the last of them, so that its blocks, which land in
// any order, take their places in the eviction order together.
void BlockCache::end_or_wait(LeaseId id, Lease& lease) {
  lease.session = 0;
  if (std::ranges::any_of(lease.blocks, &Leased::pending)) return;
  ending_.push_back(std::move(lease));
  leases_.erase(id);
  end_leases();
}

// One session may have a million blocks leased, and end: so many at a time.
void BlockCache::end_leases() {
  while (!ending_.empty() && (ended_blocks_ < limits::kEndStep || !disk_.later)) {
    const Lease ended = std::move(ending_.front());
    ending_.pop_front();
    ended_blocks_ += ended.blocks.size();
    end_lease(ended);
  }
  if (ended_blocks_ < limits::kEndStep || !disk_.later || std::exchange(ending_later_, true))
    return;
  disk_.later([this] {
    ending_later_ = false;
    ended_blocks_ = 0;
    end_leases();
  });
}

void BlockCache::end_lease(const Lease& lease) {
  std::vector<BlockId> prefix;
  prefix.reserve(lease.blocks.size());
  UserHolds& of_user = holds_of_.at(lease.user);
  for (const Leased& leased : lease.blocks) {
    if (leased.block != kNoBlock) {
      prefix.push_back(leased.block);
      if (!leased.pending) unhold(of_user, leased.block, leased.tier);
    }
    uncount(of_user, leased);
  }
  of_user.blocks -= lease.blocks.size();
  if (--of_user.leases == 0) holds_of_.erase(lease.user);
  catalogue_.touch(prefix);
  for (const BlockId id : prefix) settle(id);
}

// Removes a doomed block once its last hold has ended; of one that is spoilt, each placement that
// does not hold once nobody holds that.
void BlockCache::settle(BlockId id) {
  const Block& block = catalogue_.block(id);
  if (const TierSet spoilt = block.spoilt; !spoilt.empty()) {
    for (const Tier tier : {Tier::device, Tier::host}) {
      if (spoilt.has(tier) && block.holds[index_of(tier)] == 0)
        remove_from(id, tier, Removal::forgotten);
    }
    return;
  }
  if (block.doomed && !block.loading && Catalogue::unheld(block))
    remove_everywhere(id, Removal::forgotten);
}

}  // namespace kvtier::daemon
