// How the leading blocks of one sequence come to be there: from the engine's own pages, from the
// cache, or computed. It says up to which token the sequence may be computed next, takes blocks as
// they arrive, and, where loading and computing go on at once, asks for the next range from the
// back for as long as it would land before computing gets there.
//
// One thread: the engine's.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine_adapter/reference/model/sequence.h"
#include "engine_adapter/reference/scheduler/prefix/cache_spaces.h"
#include "engine_adapter/reference/scheduler/prefix/cache_wait.h"
#include "engine_adapter/reference/scheduler/prefix/load_task.h"
#include "engine_adapter/reference/scheduler/prefix/offers.h"
#include "engine_adapter/reference/scheduler/scheduler_options.h"

namespace kvtier::engine {

// What all fills share; outlives them.
struct FillParts {
  Model& model;
  PagePool& pool;
  BlockStore& store;
  Loads& loads;
  Offers& offers;
  LeaseWorker& worker;
  CostModel& costs;
  SchedulerMetrics& metrics;
  std::uint32_t step_tokens;
};

class PrefixFill {
 public:
  // `tokens`, `sequence`, which is empty, and `wait`, which is the request's, outlive it.
  PrefixFill(const FillParts& parts, const CacheSpace& space, const std::vector<Token>& tokens,
             Sequence& sequence, CacheWait& wait);
  ~PrefixFill() { leave_all(); }
  PrefixFill(const PrefixFill&) = delete;
  PrefixFill& operator=(const PrefixFill&) = delete;

  // Before plan(): blocks behind the first `blocks` are computed wherever they are.
  void take_at_most(std::uint32_t blocks) noexcept { blocks_max_ = blocks; }

  // Before plan(): blocks of the first `tokens` tokens come to the cache by and by. They are taken
  // as they come. `wait`, which outlives it, says how long is waited for the next.
  void await(std::uint32_t tokens, CacheWait& wait) noexcept {
    awaited_end_ = tokens / block_tokens_;
    handoff_ = &wait;
  }

  // Takes what the engine has, and decides about what the cache has. Once.
  void plan(LoadPolicy policy);
  const LoadPlan& decided() const noexcept { return plan_; }

  // Takes blocks that are there. False: the next block is on its way, nothing can be computed.
  bool advance();
  // As advance() found it.
  bool blocked() const noexcept { return blocked_; }
  // What keeps advance() is not a block on its way but the want of a page.
  bool needs_page() const noexcept { return needs_page_; }
  // After advance(): how far the sequence may be computed, in tokens.
  std::uint32_t compute_until() const;
  // Asks for more from the back, where both go on at once.
  void extend();

  // The task whose copies are under way and that brings the next blocks, all of them up to one that
  // must be computed; null where it is not so simple. trust() takes those blocks before they are
  // there; settle(), after the step whose layers waited for them, says whether they held. If not,
  // the sequence ends before the first bad one.
  std::shared_ptr<LoadTask> next_task() const;
  void trust(const LoadTask& task);
  bool settle(LoadTask& task);

  // Whether blocks that lie in place are still what they were. If not, the sequence ends before the
  // first of them.
  bool intact() const noexcept;
  void let_go();
  bool in_place() const noexcept { return first_in_place_ != kNone; }
  // What a fork of the sequence, complete blocks and all, depends on.
  void copy_from(const PrefixFill& other);

  // Of the tokens taken since the start: from the engine's pages, and by tier.
  std::uint32_t taken_local() const noexcept { return taken_local_; }
  const std::array<std::uint32_t, kTiersWithRemote>& taken() const noexcept { return taken_; }

  // `block` of the tokens, which has all of its own.
  BlockName name(std::uint32_t block);
  std::uint32_t blocks_planned() const noexcept {
    return static_cast<std::uint32_t>(ahead_.size());
  }

 private:
  static constexpr std::uint32_t kNone = ~0U;
  enum class State : std::uint8_t { missing, waiting, here };
  struct Ahead {
    State state = State::missing;
    std::shared_ptr<LoadTask> task;  // brings it, or brought it
    std::uint32_t index = 0;         // in the task
    bool shared = false;             // another sequence asked for it
  };

  bool take_next();
  bool take_found(std::uint32_t block);
  void reserve_ahead(std::uint32_t end);
  void decide(LoadPolicy policy, const Match& match);
  RangeBytes bytes_of(const Match& match, std::uint32_t missing) const;
  void start_runs(std::uint32_t first);
  bool take_awaited();
  void look_further(Clock::time_point now);
  bool awaits_more();
  void stop_awaiting();
  std::uint32_t blocks_in_time() const;
  void start_range(std::uint32_t first, std::uint32_t end, Deadline deadline);
  void count_lookup();
  bool waited_enough();
  void stop_waiting();
  void wait_for(std::uint32_t block, const BlockStore::Found& found);
  void take_arrived(std::uint32_t block);
  void adopt(std::uint32_t block);
  void leave_all();
  std::uint32_t share_of_loading(std::uint32_t front) const;
  std::uint32_t pieces_in_flight() const;
  std::uint32_t matchable() const noexcept;
  std::uint32_t next_block() const noexcept { return sequence_.length() / block_tokens_; }
  // The first block of which nothing is there.
  std::uint32_t front() const noexcept {
    return (sequence_.length() + block_tokens_ - 1) / block_tokens_;
  }

  const FillParts& parts_;
  const CacheSpace space_;
  const std::vector<Token>& tokens_;
  Sequence& sequence_;
  CacheWait& wait_;
  std::optional<Clock::time_point> waiting_since_;  // for a block on its way
  const std::uint32_t block_tokens_;
  std::uint32_t blocks_max_ = kNone;
  std::vector<Key> keys_;
  std::vector<Ahead> ahead_;  // of the blocks that were planned
  // Of another engine's: blocks before it may still come.
  std::uint32_t awaited_end_ = 0;
  CacheWait* handoff_ = nullptr;
  std::optional<Clock::time_point> awaiting_since_;  // since the last of them came
  Clock::time_point cache_seen_{};                   // open, last
  Clock::time_point look_again_{}, look_further_again_{};
  std::shared_ptr<LeaseTicket> lookup_;
  std::uint32_t unasked_end_ = 0;  // both at once: blocks before it may still be asked for
  LoadPlan plan_;
  Tier slowest_ = Tier::disk;  // of those that the planned blocks are in, or the disk
  std::vector<std::shared_ptr<LoadTask>> used_;  // those left once each
  bool blocked_ = false;
  bool needs_page_ = false;
  std::uint32_t first_in_place_ = kNone;
  std::vector<std::shared_ptr<LoadTask>> in_place_;
  std::uint32_t taken_local_ = 0;
  std::array<std::uint32_t, kTiersWithRemote> taken_{};
};

}  // namespace kvtier::engine
