// The scrub: every record on disk is read and verified, a device after the other. One that does not
// hold is forgotten and its slot retired.
//
// A pass of its own goes at a rate, at most one in `pass_every`; one that is asked for goes as fast
// as reads and writes leave room. No block is held for it: a record counts as corrupt only if its
// slot had the same block from the read's start to its end. Owned by the control thread, on which
// it takes bounded steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "daemon/cache/tiers/disk_tier.h"

namespace kvtier::daemon {

class Scrubber {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Options {
    std::uint64_t bytes_per_second = 0;  // 0: only when asked
    std::chrono::seconds pass_every = std::chrono::hours(24);
    std::function<Time()> now = std::chrono::steady_clock::now;
  };
  struct Pass {
    std::uint64_t records = 0;  // checked, the corrupt ones too
    std::uint64_t bytes = 0;
    std::uint64_t corrupt = 0;
    std::uint64_t skipped = 0;  // out of reach, or changed under the read
    Time began, ended;
  };

  // Both outlive this.
  Scrubber(Options options, DiskTier& disk, Catalogue& catalogue);

  // A pass over everything at full speed, if none is under way.
  void start();
  // Of the background pass; what it had saved up goes.
  void set_rate(std::uint64_t bytes_per_second) noexcept {
    options_.bytes_per_second = bytes_per_second;
    if (!fast_) budget_bytes_ = 0;
  }
  // About once a second: lets the background pass go on, or begins one when it is time.
  void tick();

  bool running() const noexcept { return running_; }
  std::uint64_t passes() const noexcept { return passes_; }
  const Pass& current() const noexcept { return current_; }  // while running()
  const Pass& last() const noexcept { return last_; }        // where passes() is not 0

 private:
  void begin(bool fast);
  void advance();
  bool may_go_on() const noexcept;
  BlockId next();
  bool at_end() const noexcept;
  bool check(BlockId id);
  void checked(std::uint32_t device, Place at, BlockId id, std::uint64_t bytes, bool of_this_pass,
               const Result<void>& result);
  void finish();

  Options options_;
  DiskTier& disk_;
  Catalogue& catalogue_;
  bool running_ = false;
  bool fast_ = false;
  bool step_waits_ = false;
  std::int64_t budget_bytes_ = 0;
  Time last_tick_{};
  // The cursor: the next slot to look at.
  std::uint32_t device_ = 0, segment_ = 0, slot_ = 0;
  std::uint32_t under_way_ = 0;
  std::uint64_t number_ = 0;  // of the pass
  std::uint64_t passes_ = 0;
  Pass current_, last_;
};

}  // namespace kvtier::daemon
