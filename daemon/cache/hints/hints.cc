#include "daemon/cache/hints/hints.h"

#include <algorithm>

#include "core/base/check.h"
#include "daemon/limits.h"

namespace kvtier::daemon {
namespace {

std::uint64_t part_of(std::uint64_t bytes, std::uint32_t percent) noexcept {
  return bytes / 100 * percent + bytes % 100 * percent / 100;
}

}  // namespace

Hints::Hints(Options options, Catalogue& catalogue, MemoryTiers& memory, DiskTier& disk,
             Loads& loads, const Later& later)
    : options_(options),
      catalogue_(catalogue),
      memory_(memory),
      disk_(disk),
      prefetches_(catalogue, memory.host(), loads, counts_, options.prefetched_percent, later) {}

void Hints::take(const Said& said, Time now) {
  KVTIER_CHECK(said.hint.tier != Tier::disk && said.hint.priority <= kHintPriorityMax);
  if (catalogue_.namespaces()[said.ns].closed)
    return counts_.add(said.hint.kind, HintOutcome::absent, said.keys.size());
  switch (said.hint.kind) {
    case HintKind::prefetch:
      return prefetch(said);
    case HintKind::keep:
      return keep(said, now);
    case HintKind::demote:
    case HintKind::ended:
      return lower(said);
  }
}

std::vector<BlockId> Hints::leading(const Said& said) {
  std::vector<BlockId> found(said.keys.size());
  found.resize(catalogue_.find_prefix(said.ns, said.keys, found));
  counts_.add(said.hint.kind, HintOutcome::absent, said.keys.size() - found.size());
  return found;
}

std::vector<BlockId> Hints::all(const Said& said) {
  std::vector<BlockId> found;
  std::span<const Key> keys = said.keys;
  while (!keys.empty()) {
    std::vector<BlockId> piece(keys.size());
    const std::size_t count = catalogue_.find_prefix(said.ns, keys, piece);
    found.insert(found.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(count));
    keys = keys.subspan(std::min(count + 1, keys.size()));
  }
  counts_.add(said.hint.kind, HintOutcome::absent, said.keys.size() - found.size());
  return found;
}

// ---- prefetch

void Hints::prefetch(const Said& said) {
  const auto found = leading(said);
  const std::uint64_t now = catalogue_.tick();
  for (const BlockId id : found) memory_.set_last_access(catalogue_.block(id), now);
  catalogue_.use(found, said.user, now);
  std::vector<BlockId> to_read;
  for (const BlockId id : found) {
    const TierSet tiers = catalogue_.reachable(id);
    const bool on_gpu =
        tiers.has(Tier::device) && catalogue_.device(id, Tier::device) == said.device;
    if (on_gpu || tiers.has(Tier::host)) {
      counts_.add(HintKind::prefetch, HintOutcome::already);
    } else if (tiers.has(Tier::disk) || tiers.has(Tier::remote)) {
      to_read.push_back(id);
    } else {
      counts_.add(HintKind::prefetch, HintOutcome::absent);
    }
  }
  for (const BlockId id : found) disk_.touched(id);
  prefetches_.ask(said.user, to_read);
}

// ---- keep

void Hints::keep(const Said& said, Time now) {
  const auto time = std::min(said.hint.keep_for, kHintKeepMax);
  Entry wanted{said.user, said.hint.priority, {}};
  if (time > std::chrono::seconds(0)) wanted.until = now + time;
  const auto found = leading(said);
  for (const BlockId id : found) counts_.add(HintKind::keep, keep_one(id, said, wanted));
}

HintOutcome Hints::keep_one(BlockId id, const Said& said, const Entry& wanted) {
  const Tier tier = said.hint.tier;
  if (!catalogue_.block(id).tiers.has(tier)) return HintOutcome::absent;
  if (tier == Tier::device && catalogue_.device(id, tier) != said.device)
    return HintOutcome::absent;
  if (!wanted.until && wanted.priority == 0) return take_back(id, tier, said.user);
  return raise(id, tier, wanted);
}

HintOutcome Hints::take_back(BlockId id, Tier tier, UserId user) {
  const auto known = entries_.find(placement(id, tier));
  if (known == entries_.end()) return HintOutcome::already;
  if (known->second.user != user) return HintOutcome::shared;
  forget(id, tier);
  return HintOutcome::taken;
}

// What another user has raised stays his unless more is asked for, and then it is whose who asks.
HintOutcome Hints::raise(BlockId id, Tier tier, const Entry& wanted) {
  const Placement at = placement(id, tier);
  const auto known = entries_.find(at);
  if (known != entries_.end() && known->second.user != wanted.user) {
    const Entry& theirs = known->second;
    if (wanted.until <= theirs.until && wanted.priority <= theirs.priority)
      return HintOutcome::already;
  }
  const bool mine = known != entries_.end() && known->second.user == wanted.user;
  if (!mine) {
    if (!may_raise(id, tier, wanted.user)) return HintOutcome::budget;
    if (known != entries_.end()) erase_entry(at);
    charge(id, tier, wanted.user, true);
  }
  set_entry(at, wanted);
  set_rank(id, tier, rank_of(wanted.priority, wanted.until.has_value()));
  return HintOutcome::taken;
}

bool Hints::may_raise(BlockId id, Tier tier, UserId user) const {
  if (entries_.size() >= limits::kHintedMax) return false;
  const Part part{tier, catalogue_.device(id, tier)};
  const std::uint64_t bytes = catalogue_.record_bytes(id);
  const auto sum = [](const auto& sums, const auto& of) {
    const auto known = sums.find(of);
    return known == sums.end() ? std::uint64_t{0} : known->second;
  };
  const std::uint64_t allowed = part_of(
      memory_.of(tier, part.second).allowance(catalogue_.tenant(id)), options_.kept_percent);
  return sum(bytes_of_user_, std::pair(user, part)) + bytes <= allowed &&
         sum(bytes_of_part_, part) + bytes <= bytes_max(tier, part.second);
}

std::uint64_t Hints::bytes_max(Tier tier, std::uint32_t device) const noexcept {
  if (tier == Tier::disk) return 0;
  return part_of(memory_.of(tier, device).cap_bytes(), limits::kHintedPercentMax);
}

void Hints::charge(BlockId id, Tier tier, UserId user, bool more) {
  const Part part{tier, catalogue_.device(id, tier)};
  const std::uint64_t bytes = catalogue_.record_bytes(id);
  const auto change = [&](auto& sums, const auto& of) {
    std::uint64_t& sum = sums[of];
    sum = more ? sum + bytes : sum - bytes;
    if (sum == 0) sums.erase(of);
  };
  change(bytes_of_user_, std::pair(user, part));
  change(bytes_of_part_, part);
  blocks_[index_of(tier)] += more ? 1ULL : ~0ULL;
  bytes_[index_of(tier)] = more ? bytes_[index_of(tier)] + bytes : bytes_[index_of(tier)] - bytes;
}

void Hints::set_entry(Placement at, const Entry& entry) {
  Entry& known = entries_[at];
  if (known.until) by_end_.erase(end_of(at, *known.until));
  known = entry;
  if (entry.until) by_end_.insert(end_of(at, *entry.until));
}

void Hints::erase_entry(Placement at) {
  const auto known = entries_.find(at);
  if (known->second.until) by_end_.erase(end_of(at, *known->second.until));
  charge(block_of(at), tier_of(at), known->second.user, false);
  entries_.erase(known);
}

void Hints::set_rank(BlockId id, Tier tier, Rank rank) {
  const Block& block = catalogue_.block(id);
  const bool was = is_kept(block.rank(tier));
  if (was != is_kept(rank)) {
    const Place at = block.places[index_of(tier)];
    memory_.of(tier, at).set_kept(at, !was);
  }
  catalogue_.set_rank(id, tier, rank);
}

bool Hints::expire(Time now, std::uint32_t most) {
  for (std::uint32_t ended = 0; ended < most; ++ended) {
    if (by_end_.empty() || std::get<Time>(*by_end_.begin()) > now) return false;
    const Placement at = std::get<Placement>(*by_end_.begin());
    const BlockId id = block_of(at);
    Entry left = entries_.at(at);
    if (left.priority == 0) {
      erase_entry(at);
    } else {
      left.until.reset();
      set_entry(at, left);
    }
    set_rank(id, tier_of(at), rank_of(left.priority, false));
  }
  return true;
}

void Hints::forget(BlockId id, Tier tier) {
  const Placement at = placement(id, tier);
  if (!entries_.contains(at)) return;
  erase_entry(at);
  set_rank(id, tier, Rank::normal);
}

Hints::Raised Hints::raised(BlockId id, Tier tier) const {
  const auto known = entries_.find(placement(id, tier));
  if (known == entries_.end()) return {};
  return {known->second.priority, known->second.until};
}

// ---- demote, ended

// Nobody but this user has used it since it came, as far as is known.
bool Hints::is_own(BlockId id, UserId user) const noexcept {
  return catalogue_.is_used_by(id, user) && !catalogue_.block(id).shared;
}

// The first block that this prefix has for itself: behind those that others have used since the
// tail was, or with another tail, or that somebody holds.
std::size_t Hints::first_of_tail(std::span<const BlockId> blocks, UserId user) const {
  if (blocks.empty()) return 0;
  const std::uint64_t newest = catalogue_.block(blocks.back()).last_access;
  std::size_t first = blocks.size();
  while (first > 0) {
    const Block& block = catalogue_.block(blocks[first - 1]);
    const unsigned writes = block.write_queued ? 1 : 0;
    const bool held = block.holds[index_of(Tier::device)] != 0 ||
                      block.holds[index_of(Tier::host)] > writes || block.loading;
    if (held || block.forked || block.last_access > newest || !is_own(blocks[first - 1], user))
      break;
    --first;
  }
  return first;
}

// Heads first, so that each goes behind its parent in the order and leaves before it.
void Hints::lower(const Said& said) {
  const auto found = all(said);
  const bool ended = said.hint.kind == HintKind::ended;
  const std::size_t first = ended ? first_of_tail(found, said.user) : 0;
  counts_.add(said.hint.kind, HintOutcome::shared, first);
  for (const BlockId id : std::span(found).subspan(first)) {
    if (!ended && is_own(id, said.user)) disk_.demoted(id);
    counts_.add(said.hint.kind, lower_one(id, said.hint.tier, said.user));
  }
}

HintOutcome Hints::lower_one(BlockId id, Tier from, UserId user) {
  const Block& block = catalogue_.block(id);
  if (!is_own(id, user)) return HintOutcome::shared;
  bool there = false, lowered = false;
  for (const Tier tier : {Tier::device, Tier::host}) {
    if (tier > from || !block.tiers.has(tier)) continue;
    there = true;
    const auto known = entries_.find(placement(id, tier));
    if (known != entries_.end() && known->second.user != user) return HintOutcome::shared;
    lowered = lower_placement(id, tier) || lowered;
  }
  if (!there) return HintOutcome::absent;
  return lowered ? HintOutcome::taken : HintOutcome::already;
}

bool Hints::lower_placement(BlockId id, Tier tier) {
  if (catalogue_.block(id).rank(tier) == Rank::spent) return false;
  forget(id, tier);
  set_rank(id, tier, Rank::spent);
  return true;
}

}  // namespace kvtier::daemon
