#include "daemon/session/admin/admin_jobs.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "daemon/limits.h"

namespace kvtier::daemon {

Result<SelectionWalk> AdminJobs::begin(Selection selection) {
  if (running_ >= limits::kAdminJobsMax) {
    return make_error(Errc::no_space, "too many admin commands are under way: try again");
  }
  return SelectionWalk::over(cache_.catalogue(), std::move(selection));
}

// Of namespaces that are known: of others nothing is.
std::vector<AdminJobs::Erasure> AdminJobs::all_of(const NamespaceFilter& filter) const {
  if (filter.is_everything()) return {{Erasure::Of::all, {}, {}}};
  std::vector<Erasure> erasures;
  const Namespaces& known = cache_.catalogue().namespaces();
  for (std::uint16_t ns = 0; ns < known.size(); ++ns) {
    if (filter.matches(known[ns])) erasures.push_back({Erasure::Of::ns, known[ns].id, {}});
  }
  return erasures;
}

std::vector<AdminJobs::Erasure> AdminJobs::named(std::span<const BlockId> blocks) const {
  std::vector<Erasure> erasures;
  const Catalogue& catalogue = cache_.catalogue();
  for (const BlockId id : blocks) {
    const Block& block = catalogue.block(id);
    erasures.push_back({Erasure::Of::key, catalogue.namespaces()[block.ns].id, block.key});
  }
  return erasures;
}

// What somebody held stays, and stays what it was, unless it goes with its last hold.
void AdminJobs::erase_what_went(std::vector<Erasure> erasures, TierSet tiers, bool force) {
  std::erase_if(erasures, [&](const Erasure& erasure) {
    const BlockId id = cache_.catalogue().find_any(erasure.key);
    return tiers.has(Tier::disk) && !force && id != kNoBlock &&
           cache_.catalogue().block(id).tiers.has(Tier::disk);
  });
  cache_.erase_for_good(erasures, tiers);
}

void AdminJobs::run(Step step) {
  ++running_;
  run_while(std::make_shared<Step>(std::move(step)));
}

void AdminJobs::run_while(const std::shared_ptr<Step>& step) {
  if (!(*step)()) {
    --running_;
    return;
  }
  later_([this, step] { run_while(step); });
}

Result<void> AdminJobs::drop(Selection selection, TierSet tiers, bool force, Done<Removed> done) {
  static constexpr TierSet kOfHost{(1U << kTiers) - 1}, kAll{(1U << kTiersWithRemote) - 1};
  if (force && (tiers.bits & kOfHost.bits) != kOfHost.bits)
    return make_error(Errc::invalid, "what is in use can only be dropped from all tiers");
  if (force) tiers = kAll;
  const std::string unknown = cache_.disk().unknown_directory();
  if (tiers.has(Tier::disk) && !unknown.empty()) {
    return make_error(Errc::refused,
                      "what " + unknown +
                          " holds is not known yet, for it could not be opened, so it cannot be "
                          "dropped: drop from the device and the host tier alone (--tier), or take "
                          "the directory out of the configuration");
  }
  // From disk and from the remote tier for good: namespaces as a whole, or else the keys that go.
  const bool by_key = selection.key.has_value();
  const bool for_good = tiers.has(Tier::disk) || tiers.has(Tier::remote);
  std::vector<Erasure> namespaces;
  if (for_good && !by_key) namespaces = all_of(selection.in);
  auto walk = begin(std::move(selection));
  if (!walk) return walk.error();
  cache_.erase_for_good(namespaces, tiers);
  const bool erase_keys = for_good && by_key;
  run([this, walk = std::move(*walk), tiers, force, erase_keys, removed = Removed{},
       done = std::move(done)]() mutable {
    std::vector<BlockId> found;
    const bool more = walk.step([&](BlockId id) { found.push_back(id); });
    auto keys = erase_keys ? named(found) : std::vector<Erasure>{};
    cache_.remove(found, tiers, force, removed);
    erase_what_went(std::move(keys), tiers, force);
    if (!more) done(removed);
    return more;
  });
  return {};
}

Result<void> AdminJobs::pin(Selection selection, TierSet tiers, Pins::Time until,
                            Done<Pinned> done) {
  auto walk = begin(std::move(selection));
  if (!walk) return walk.error();
  run([this, walk = std::move(*walk), tiers, until, pinned = Pinned{},
       done = std::move(done)]() mutable {
    const Catalogue& catalogue = cache_.catalogue();
    const bool more = walk.step([&](BlockId id) {
      // What nobody can be served is not worth keeping.
      if (catalogue.namespaces()[catalogue.block(id).ns].is_orphan()) return;
      for (const Tier tier : kAllTiers) {
        if (!tiers.has(tier)) continue;
        const auto outcome = cache_.pins().pin(id, tier, until);
        if (outcome == Pins::Outcome::no_room) ++pinned.no_room;
        if (outcome != Pins::Outcome::pinned && outcome != Pins::Outcome::again) continue;
        ++pinned.blocks;
        pinned.bytes += catalogue.record_bytes(id);
      }
    });
    if (!more) done(pinned);
    return more;
  });
  return {};
}

Result<void> AdminJobs::unpin(Selection selection, TierSet tiers, Done<std::uint64_t> done) {
  auto walk = begin(std::move(selection));
  if (!walk) return walk.error();
  run([this, walk = std::move(*walk), tiers, walking = true, unpinned = std::uint64_t{0},
       done = std::move(done)]() mutable {
    if (walking) {
      walking = walk.step([&](BlockId id) {
        bool any = false;
        for (const Tier tier : kAllTiers)
          any = (tiers.has(tier) && cache_.pins().unpin_soon(id, tier)) || any;
        unpinned += any ? 1 : 0;
      });
      return true;
    }
    const bool more = cache_.pins().expire(Pins::kAtOnce, limits::kVisitStep);
    if (!more) done(unpinned);
    return more;
  });
  return {};
}

Result<void> AdminJobs::invalidate(NamespaceFilter filter, Done<Invalidated> done) {
  filter.orphans = true;
  cache_.disk().invalidated(filter);
  Invalidated so_far;
  if (on_invalidated) so_far.sessions += on_invalidated(filter);
  auto walk = begin({filter, {}, {}});
  if (!walk) return walk.error();
  auto closed = cache_.close_namespaces(filter);
  std::vector<Erasure> erasures;
  for (const std::uint16_t ns : closed) {
    so_far.namespaces.push_back(cache_.catalogue().namespaces()[ns].id);
    erasures.push_back({Erasure::Of::ns, so_far.namespaces.back(), {}});
  }
  static constexpr TierSet kAll{(1U << kTiersWithRemote) - 1};
  cache_.erase_for_good(erasures, kAll);
  run([this, walk = std::move(*walk), so_far = std::move(so_far), closed = std::move(closed),
       done = std::move(done)]() mutable {
    // Each is told to all sessions, of which there may be thousands too.
    for (std::uint32_t told = 0; !closed.empty() && told < limits::kTellStep; ++told) {
      if (on_closed) so_far.sessions += on_closed(closed.back());
      closed.pop_back();
    }
    if (!closed.empty()) return true;
    std::vector<BlockId> found;
    const bool more = walk.step([&](BlockId id) { found.push_back(id); });
    cache_.remove(found, kAll, true, so_far.removed);
    if (!more) finish(std::move(so_far), done);
    return more;
  });
  return {};
}

void AdminJobs::finish(Invalidated&& so_far, const Done<Invalidated>& done) {
  for (const auto& device : cache_.disk().devices()) {
    if (!device->online()) so_far.disks_offline.push_back(device->directory());
  }
  spdlog::info("invalidated {} namespaces: {} blocks removed, {} go when their use ends",
               so_far.namespaces.size(), so_far.removed.blocks, so_far.removed.in_use);
  const auto answer = std::make_shared<Invalidated>(std::move(so_far));
  cache_.flush([answer, done](const Result<void>& flushed) {
    answer->flushed = flushed;
    done(*answer);
  });
}

// ---- to the remote tier

// By key: the number may be another block's by the time.
struct AdminJobs::Push {
  struct Block {
    std::uint32_t block_index;
    std::uint16_t ns;
    Key key;
  };
  std::vector<Block> blocks;  // heads of prefixes before tails
  std::size_t next = 0;
  std::chrono::steady_clock::time_point until;
  Done<Pushed> done;
};

Result<void> AdminJobs::push(Selection selection, std::uint32_t used_within_s, Done<Pushed> done) {
  if (!cache_.remote().configured())
    return make_error(Errc::refused, "there is no remote tier: set [remote] url");
  auto walk = begin(std::move(selection));
  if (!walk) return walk.error();
  auto push = std::make_shared<Push>();
  push->done = std::move(done);
  run([this, walk = std::move(*walk), used_within_s, push]() mutable {
    Catalogue& catalogue = cache_.catalogue();
    const bool more = walk.step([&](BlockId id) {
      const Block& block = catalogue.block(id);
      const auto age = catalogue.ages().of(block.last_access);
      if (block.doomed || (used_within_s != 0 && age.known && age.seconds > used_within_s)) return;
      push->blocks.push_back({block.block_index, block.ns, block.key});
    });
    if (more) return true;
    std::ranges::stable_sort(push->blocks, {}, &Push::Block::block_index);
    push->until = std::chrono::steady_clock::now() + limits::kPushWaitMax;
    ++running_;
    push_some(push);
    return false;
  });
  return {};
}

// As many as the queue takes; then, in a while, more, until all of them have left it.
void AdminJobs::push_some(const std::shared_ptr<Push>& push) {
  constexpr std::chrono::milliseconds kWhile{10};
  RemoteWrites& writes = cache_.remote().writes();
  const Catalogue& catalogue = cache_.catalogue();
  for (std::uint32_t looked = 0; push->next < push->blocks.size() && looked < limits::kVisitStep;
       ++looked, ++push->next) {
    const Push::Block& next = push->blocks[push->next];
    const BlockId id = catalogue.find(next.ns, next.key);
    if (id == kNoBlock) continue;
    if (!writes.has_room(1, catalogue.record_bytes(id))) break;
    writes.push(id);
  }
  const bool goes_on = push->next < push->blocks.size() || writes.queued() != 0;
  if (!goes_on || std::chrono::steady_clock::now() >= push->until) return end_push(*push);
  const auto& after = cache_.remote().after;
  if (!after) return later_([this, push] { push_some(push); });
  after(kWhile, [this, push] { push_some(push); });
}

void AdminJobs::end_push(const Push& push) {
  --running_;
  Pushed pushed;
  for (const Push::Block& block : push.blocks) {
    const BlockId id = cache_.catalogue().find(block.ns, block.key);
    const bool there = id != kNoBlock && cache_.catalogue().block(id).tiers.has(Tier::remote);
    ++(there ? pushed.blocks : pushed.left);
  }
  push.done(pushed);
}

void AdminJobs::end_pins(Pins::Time now) {
  if (std::exchange(ending_pins_, true)) return;
  run([this, now] {
    ending_pins_ = cache_.pins().expire(now, limits::kVisitStep);
    return ending_pins_;
  });
}

}  // namespace kvtier::daemon
