#include "engine_adapter/reference/scheduler/prefix/prefix_fill.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "engine_adapter/reference/scheduler/limits.h"

namespace kvtier::engine {

PrefixFill::PrefixFill(const FillParts& parts, const CacheSpace& space,
                       const std::vector<Token>& tokens, Sequence& sequence, CacheWait& wait)
    : parts_(parts),
      space_(space),
      tokens_(tokens),
      sequence_(sequence),
      wait_(wait),
      block_tokens_(parts.pool.layout().block_tokens) {}

BlockName PrefixFill::name(std::uint32_t block) {
  const auto tokens_of = [&](std::size_t b) {
    return std::span(tokens_).subspan(b * block_tokens_, block_tokens_);
  };
  while (keys_.size() <= block) {
    const Key parent = keys_.empty() ? Key{} : keys_.back();
    keys_.push_back(chain_key(space_.id, parent, tokens_of(keys_.size())));
  }
  return {space_.id, keys_[block], block == 0 ? Key{} : keys_[block - 1], tokens_of(block)};
}

// ---- the plan

std::uint32_t PrefixFill::matchable() const noexcept {
  const auto blocks = static_cast<std::uint32_t>(blocks_matchable(tokens_.size(), block_tokens_));
  return std::min(blocks, blocks_max_);
}

void PrefixFill::plan(LoadPolicy policy) {
  const std::uint32_t matchable = this->matchable();
  while (ahead_.size() < matchable && take_found(static_cast<std::uint32_t>(ahead_.size()))) {
  }
  parts_.metrics.local_queries += std::uint64_t{matchable} * block_tokens_;
  const auto local = static_cast<std::uint32_t>(ahead_.size());
  parts_.metrics.local_hits += std::uint64_t{local} * block_tokens_;
  awaited_end_ = space_.cache == nullptr ? 0 : std::min(awaited_end_, matchable);
  if (matchable == 0 || space_.cache == nullptr) return;
  const Match match = space_.cache->match(tokens_);
  // Dropped when it was computed, or evicted since: it is used, so it is worth keeping.
  if (match.blocks < local) {
    parts_.offers.owe(space_, tokens_, {match.blocks, local}, name(local - 1).key);
  }
  if (local == matchable) return;
  parts_.metrics.cache_queries += std::uint64_t{matchable - local} * block_tokens_;
  if (awaited_end_ > local && !handoff_->over() && !wait_.over()) {
    plan_ = {.mode = LoadMode::load, .reason = LoadReason::awaited};
    ++parts_.metrics.plans_load;
    return;
  }
  awaited_end_ = 0;
  reserve_ahead(std::min(match.blocks, matchable));
  if (std::ranges::count(ahead_, State::missing, &Ahead::state) == 0) return count_lookup();
  decide(wait_.over() ? LoadPolicy::always_compute : policy, match);
  switch (plan_.mode) {
    case LoadMode::none:
      break;
    case LoadMode::load:
      ++parts_.metrics.plans_load;
      start_runs(0);
      break;
    case LoadMode::both:
      ++parts_.metrics.plans_both;
      unasked_end_ = blocks_planned();
      extend();
      break;
    case LoadMode::compute:
      ++parts_.metrics.plans_compute;
      count_lookup();
      break;
  }
}

// The daemon counts the lookups of requests that lease nothing, too. Nobody waits for the answer,
// but it tells when a daemon that was silent is back.
void PrefixFill::count_lookup() {
  if (next_block() != 0 || (!ahead_.empty() && ahead_.front().state != State::missing)) return;
  auto ticket = std::make_shared<LeaseTicket>();
  ticket->cache = space_.cache;
  ticket->tokens = tokens_;
  ticket->deadline = Clock::now() + wait_.longest();
  parts_.worker.ask(std::move(ticket));
}

// Adds the next block to the plan if the engine has it, or is getting it.
bool PrefixFill::take_found(std::uint32_t block) {
  parts_.loads.announce();
  const auto found = parts_.store.find(name(block));
  if (!found) return false;
  sequence_.share(found->page);
  ahead_.emplace_back();
  wait_for(block, *found);
  return true;
}

void PrefixFill::wait_for(std::uint32_t block, const BlockStore::Found& found) {
  Ahead& ahead = ahead_[block];
  ahead.shared = true;
  ahead.task = found.task;
  ahead.index = found.index;
  ahead.state = found.task ? State::waiting : State::here;
  if (!found.task || std::ranges::find(used_, found.task) != used_.end()) return;
  used_.push_back(found.task);
  parts_.loads.use(*found.task);
  ++parts_.metrics.loads_shared;
}

void PrefixFill::reserve_ahead(std::uint32_t end) {
  while (ahead_.size() < end) {
    const auto block = static_cast<std::uint32_t>(ahead_.size());
    if (take_found(block)) continue;
    if (parts_.pool.pages_free() == 0) parts_.store.give_up_one();
    if (!sequence_.reserve((block + 1) * block_tokens_)) return;
    ahead_.emplace_back();
  }
}

// The slowest tiers hold the tail: what is evicted first is what comes last.
RangeBytes PrefixFill::bytes_of(const Match& match, std::uint32_t missing) const {
  RangeBytes bytes;
  const double each = static_cast<double>(parts_.pool.layout().record_bytes);
  std::uint32_t left = missing;
  for (auto tier = kAllTiersWithRemote.rbegin(); tier != kAllTiersWithRemote.rend(); ++tier) {
    const std::uint32_t there =
        *tier == Tier::remote ? match.remote() : match.per_tier[index_of(*tier)];
    const std::uint32_t count = std::min(left, there);
    const bool in_place = *tier == Tier::device && parts_.model.reads_device_tier();
    if (!in_place) bytes.of_tier[index_of(*tier)] = count * each;
    left -= count;
  }
  return bytes;
}

void PrefixFill::decide(LoadPolicy policy, const Match& match) {
  StepWork work;
  std::uint32_t missing = 0;
  for (std::uint32_t block = 0; block < ahead_.size(); ++block) {
    if (ahead_[block].state != State::missing) continue;
    ++missing;
    const StepWork one = StepWork::of(block * block_tokens_, (block + 1) * block_tokens_, 1);
    work += {0, one.rows, one.pairs};
  }
  work.steps = std::ceil(work.rows / parts_.step_tokens);
  const RangeBytes bytes = bytes_of(match, missing);
  slowest_ = bytes.of_tier[index_of(Tier::remote)] > 0 ? Tier::remote : Tier::disk;
  plan_ = parts_.costs.plan(bytes, work);
  if (policy == LoadPolicy::automatic) return;
  plan_.reason = LoadReason::forced;
  plan_.mode = policy == LoadPolicy::always_load   ? LoadMode::load
               : policy == LoadPolicy::always_both ? LoadMode::both
                                                   : LoadMode::compute;
}

// The blocks that the disk, or the network, brings within a part of the deadline.
std::uint32_t PrefixFill::blocks_in_time() const {
  const LinkRate& disk = parts_.costs.link(slowest_);
  if (!disk.known() || disk.per_unit_s() <= 0) return kNone;
  const double record = static_cast<double>(parts_.pool.layout().record_bytes);
  const double part = std::chrono::duration<double>(wait_.longest()).count() * kPieceDeadlinePart;
  return static_cast<std::uint32_t>(std::clamp(part / (disk.per_unit_s() * record), 1.0, 1e6));
}

// One range for each run of missing blocks from `begin` on; several, one behind the other, where
// the disk would take too much of the deadline for one.
void PrefixFill::start_runs(std::uint32_t begin) {
  const auto end = blocks_planned();
  const std::uint32_t most = blocks_in_time();
  Deadline deadline = wait_.deadline(Clock::now());
  for (std::uint32_t first = begin; first < end && !wait_.over();) {
    std::uint32_t last = first;
    while (last < end && last - first < most && ahead_[last].state == State::missing) ++last;
    if (last > first) {
      start_range(first, last, deadline);
      deadline += std::chrono::duration_cast<Clock::duration>(wait_.longest() * kPieceDeadlinePart);
    }
    first = std::max(last, first + 1);
  }
}

void PrefixFill::start_range(std::uint32_t first, std::uint32_t end, Deadline deadline) {
  std::vector<BlockName> names;
  std::vector<PageId> pages;
  for (std::uint32_t block = first; block < end; ++block) {
    names.push_back(name(block));
    pages.push_back(*sequence_.page(block));
  }
  auto task =
      parts_.loads.start(space_.cache, tokens_, {first, end}, names, std::move(pages), deadline);
  for (std::uint32_t block = first; block < end; ++block) {
    ahead_[block] = {State::waiting, task, block - first, false};
  }
  // Asked on this thread, it may be known already that nobody answers.
  const LeaseTicket& ticket = *task->ticket;
  if (ticket.answered.load(std::memory_order_acquire) && !*ticket.answer &&
      ticket.answer->error().code == Errc::deadline) {
    wait_.give_up();
  }
  used_.push_back(std::move(task));
}

// ---- both at once

std::uint32_t PrefixFill::pieces_in_flight() const {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(used_, [](const auto& task) { return !task->ended(); }));
}

// Of the blocks between `front` and the last range asked for, how many would be better loaded: both
// sides then come to their end at the same time. With no rates known, as many as tell the disk's.
std::uint32_t PrefixFill::share_of_loading(std::uint32_t front) const {
  const std::uint32_t gap = unasked_end_ - front;
  double in_flight = 0;
  for (const auto& task : used_) {
    if (!task->ended()) in_flight += task->blocks();
  }
  RangeBytes one;
  const double record = static_cast<double>(parts_.pool.layout().record_bytes);
  one.of_tier[index_of(slowest_)] = record * gap;
  const auto load = parts_.costs.load_seconds(one);
  const auto compute = parts_.costs.compute_seconds(
      StepWork::of(front * block_tokens_, unasked_end_ * block_tokens_, parts_.step_tokens));
  if (!load || !compute || *load + *compute <= 0) return std::min(kBlocksToTellRate, (gap + 1) / 2);
  const double loads_per_s = gap / std::max(*load, 1e-9);
  const double computes_per_s = gap / std::max(*compute, 1e-9);
  const double share =
      (gap * loads_per_s - in_flight * computes_per_s) / (loads_per_s + computes_per_s);
  return static_cast<std::uint32_t>(std::clamp(std::floor(share), 0.0, static_cast<double>(gap)));
}

void PrefixFill::extend() {
  while (!wait_.over() && unasked_end_ > front() && pieces_in_flight() < kPiecesInFlight) {
    // Only a run of missing blocks can be asked for at once.
    if (ahead_[unasked_end_ - 1].state != State::missing) {
      --unasked_end_;
      continue;
    }
    const std::uint32_t share = share_of_loading(front());
    // Ranges get smaller towards the meeting point, but not below where the fixed time of a load
    // is most of it.
    const LinkRate& disk = parts_.costs.link(slowest_);
    const double record = static_cast<double>(parts_.pool.layout().record_bytes);
    const double least =
        disk.known() && disk.per_unit_s() > 0 ? disk.fixed_s() / (disk.per_unit_s() * record) : 1;
    std::uint32_t count = std::max((share + 1) / 2, static_cast<std::uint32_t>(std::ceil(least)));
    if (count > share) count = share;
    count = std::min(count, blocks_in_time());
    if (count == 0 || static_cast<double>(count) < least / 2) return;
    std::uint32_t first = unasked_end_ - std::min(count, unasked_end_ - front());
    for (std::uint32_t block = unasked_end_; block > first; --block) {
      if (ahead_[block - 1].state != State::missing) first = block;
    }
    start_range(first, unasked_end_, wait_.deadline(Clock::now()));
    unasked_end_ = first;
  }
}

std::uint32_t PrefixFill::compute_until() const {
  const std::uint32_t first = next_block();
  const auto goal = static_cast<std::uint32_t>(tokens_.size());
  if (first >= blocks_planned()) return goal;
  std::uint32_t end = first;
  while (end < blocks_planned() && ahead_[end].state == State::missing) ++end;
  if (end == blocks_planned()) return end < awaited_end_ ? end * block_tokens_ : goal;
  // Up to where loading is expected to come to meet it, then look again.
  if (plan_.mode == LoadMode::both && unasked_end_ > first + 1) {
    const std::uint32_t share = share_of_loading(first);
    const std::uint32_t computed = unasked_end_ - first - std::min(share, unasked_end_ - first - 1);
    end = std::min(end, first + computed);
  }
  return end * block_tokens_;
}

// ---- blocks that arrive

bool PrefixFill::advance() {
  blocked_ = !take_next();
  return !blocked_;
}

bool PrefixFill::take_next() {
  needs_page_ = false;
  while (sequence_.length() % block_tokens_ == 0 && next_block() < matchable()) {
    const std::uint32_t block = next_block();
    if (block >= blocks_planned()) {
      // Another request may have made it meanwhile.
      if (block != sequence_.records().size()) return true;
      ahead_.resize(block);
      if (!take_found(block)) {
        if (!awaits_more()) return true;
        if (!take_awaited()) return false;
      }
    }
    if (ahead_[block].state == State::waiting) take_arrived(block);
    if (ahead_[block].state == State::waiting && !waited_enough()) return false;
    if (ahead_[block].state == State::missing) {
      needs_page_ = !sequence_.make_own(block);
      return !needs_page_;
    }
    adopt(block);
  }
  return true;
}

// Whether it is time to compute the next block, which is on its way, and those behind it.
bool PrefixFill::waited_enough() {
  const auto now = Clock::now();
  if (!waiting_since_) waiting_since_ = now;
  if (!wait_.over() && now - *waiting_since_ < wait_.left()) return false;
  wait_.give_up();
  stop_waiting();
  return true;
}

// A copy that is under way goes on into its own page.
void PrefixFill::stop_waiting() {
  waiting_since_.reset();
  for (Ahead& ahead : ahead_) {
    if (ahead.state == State::waiting && !ahead.task->ended()) ahead.state = State::missing;
  }
  std::erase_if(used_, [&](const auto& task) {
    if (task->ended()) return false;
    parts_.loads.leave(*task);
    return true;
  });
}

void PrefixFill::take_arrived(std::uint32_t block) {
  Ahead& ahead = ahead_[block];
  if (!ahead.task->ended()) return;
  const auto waited = waiting_since_ ? Clock::now() - *waiting_since_ : Clock::duration::zero();
  waiting_since_.reset();
  if (ahead.index >= ahead.task->good) {
    ahead.state = State::missing;
    wait_.spend(waited);
    if (ahead.task->late && !ahead.shared) wait_.give_up();
    return;
  }
  ahead.state = State::here;
  wait_.news();
  std::byte* const in_place = ahead.task->in_place[ahead.index];
  if (in_place == nullptr) return;
  sequence_.use_record(block, in_place);
  first_in_place_ = std::min(first_in_place_, block);
  if (in_place_.empty() || in_place_.back() != ahead.task) in_place_.push_back(ahead.task);
}

void PrefixFill::adopt(std::uint32_t block) {
  const BlockName named = name(block);
  sequence_.adopt(named.tokens, named.key);
  const Ahead& ahead = ahead_[block];
  if (ahead.task && !ahead.shared) {
    taken_[index_of(ahead.task->sources[ahead.index])] += block_tokens_;
  } else {
    taken_local_ += block_tokens_;
  }
}

std::shared_ptr<LoadTask> PrefixFill::next_task() const {
  const std::uint32_t first = next_block();
  if (sequence_.length() % block_tokens_ != 0 || first >= blocks_planned()) return nullptr;
  const Ahead& ahead = ahead_[first];
  if (ahead.state != State::waiting || ahead.shared || ahead.index != 0) return nullptr;
  if (blocks_planned() < awaited_end_) return nullptr;
  const auto& task = ahead.task;
  const bool is_all =
      task->stage == LoadTask::Stage::copying && first + task->sources.size() == task->range.end;
  const bool is_last =
      task->range.end == blocks_planned() || ahead_[task->range.end].state == State::missing;
  return is_all && is_last ? task : nullptr;
}

void PrefixFill::trust(const LoadTask& task) {
  for (std::uint32_t i = 0; i < task.sources.size(); ++i) {
    const std::uint32_t block = task.range.first + i;
    if (task.in_place[i] != nullptr) {
      sequence_.use_record(block, task.in_place[i]);
      first_in_place_ = std::min(first_in_place_, block);
      if (in_place_.empty() || in_place_.back() != ahead_[block].task) {
        in_place_.push_back(ahead_[block].task);
      }
    }
    ahead_[block].state = State::here;
    adopt(block);
  }
}

bool PrefixFill::settle(LoadTask& task) {
  parts_.loads.settle(task);
  const auto asked = static_cast<std::uint32_t>(task.sources.size());
  if (task.good == asked) return true;
  const std::uint32_t good = task.range.first + task.good;
  for (std::uint32_t i = task.good; i < asked; ++i) {
    taken_[index_of(task.sources[i])] -= block_tokens_;
  }
  // What is behind them comes to the store, and is found there.
  ahead_.resize(good);
  unasked_end_ = 0;
  sequence_.truncate(good);
  if (first_in_place_ >= good) {
    first_in_place_ = kNone;
    in_place_.clear();
  }
  return false;
}

// ---- blocks in place

bool PrefixFill::intact() const noexcept {
  return std::ranges::all_of(in_place_, [](const auto& task) { return task->intact(); });
}

void PrefixFill::let_go() {
  for (std::uint32_t block = first_in_place_; block < std::min(next_block(), blocks_planned());
       ++block) {
    const Ahead& ahead = ahead_[block];
    if (ahead.state != State::here) continue;
    if (ahead.task && !ahead.shared) {
      taken_[index_of(ahead.task->sources[ahead.index])] -= block_tokens_;
    } else {
      taken_local_ -= block_tokens_;
    }
  }
  sequence_.truncate(first_in_place_);
  ahead_.resize(std::min(blocks_planned(), first_in_place_));
  unasked_end_ = 0;
  first_in_place_ = kNone;
  in_place_.clear();
}

void PrefixFill::copy_from(const PrefixFill& other) {
  first_in_place_ = other.first_in_place_;
  in_place_ = other.in_place_;
  keys_ = other.keys_;
}

void PrefixFill::leave_all() {
  for (const auto& task : used_) parts_.loads.leave(*task);
  used_.clear();
}

}  // namespace kvtier::engine
