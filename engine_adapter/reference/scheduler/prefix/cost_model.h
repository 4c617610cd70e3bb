// What loading and computing cost on this machine, as measured, and what to do with the cached part
// of a prompt for it.
//
// A range of blocks takes a tier's fixed time and its bytes over the tier's rate; computing tokens
// [a, b) takes a time per step, one per token and one per pair of tokens that attend to each other,
// which is why it grows with the context. All are least-squares fits over past loads and steps, of
// which each counts a little less than the one after it.
//
// One thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "engine_adapter/reference/scheduler/prefix/load_plan.h"
#include "kvtier/tier.h"

namespace kvtier::engine {

// seconds = fixed + units / rate.
class LinkRate {
 public:
  void note(double units, double seconds) noexcept;
  bool known() const noexcept { return weight_ > 0; }
  double fixed_s() const noexcept { return fixed_; }
  double per_unit_s() const noexcept { return per_unit_; }
  double seconds(double units) const noexcept { return fixed_ + units * per_unit_; }

 private:
  double weight_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;  // sums over past observations
  double fixed_ = 0, per_unit_ = 0;
};

// What steps were asked to do.
struct StepWork {
  double steps = 0;
  double rows = 0;
  double pairs = 0;  // of a row and a token it attends to

  // Rows of the tokens [first, end) of one sequence, `step_tokens` at a time.
  static StepWork of(std::uint32_t first, std::uint32_t end, std::uint32_t step_tokens) noexcept;
  StepWork& operator+=(const StepWork& other) noexcept;
};

class ComputeRate {
 public:
  void note(const StepWork& work, double seconds) noexcept;
  bool known() const noexcept { return known_; }
  double seconds(const StepWork& work) const noexcept;

 private:
  void solve() noexcept;

  bool known_ = false;
  std::array<std::array<double, 3>, 3> products_{};
  std::array<double, 3> targets_{};
  std::array<double, 3> costs_{};  // per step, row and pair; none below 0
};

struct RangeBytes {
  std::array<double, kTiersWithRemote> of_tier{};  // to be read from each tier
};

class CostModel {
 public:
  // Blocks that were on disk, or in the remote tier, have arrived in memory.
  void note_arrival(Tier from, double bytes, double seconds) noexcept;
  // Blocks were copied out of a tier in memory.
  void note_copy(Tier from, double bytes, double seconds) noexcept;
  void note_compute(const StepWork& work, double seconds) noexcept;
  bool compute_known() const noexcept { return compute_.known(); }

  std::optional<double> load_seconds(const RangeBytes& bytes) const noexcept;
  std::optional<double> compute_seconds(const StepWork& work) const noexcept;
  // How the cost of one more byte and of one more load there compare; none before both are known.
  const LinkRate& link(Tier tier) const noexcept { return links_[index_of(tier)]; }

  // For cached blocks that hold `bytes` and would take `work` to compute.
  LoadPlan plan(const RangeBytes& bytes, const StepWork& work) const noexcept;

 private:
  std::array<LinkRate, kTiersWithRemote> links_;
  ComputeRate compute_;
};

}  // namespace kvtier::engine
