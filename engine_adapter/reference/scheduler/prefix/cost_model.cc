#include "engine_adapter/reference/scheduler/prefix/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvtier::engine {
namespace {

// An observation counts this much less with each that follows.
constexpr double kLinkMemory = 0.9;
constexpr double kComputeMemory = 0.97;
// Both at once has to promise this part of the better time at most: it keeps two resources busy.
constexpr double kBothGain = 0.9;

constexpr bool is_slow(Tier tier) noexcept {
  return tier == Tier::disk || tier == Tier::remote;
}

bool any_slow(const RangeBytes& bytes) noexcept {
  return bytes.of_tier[index_of(Tier::disk)] + bytes.of_tier[index_of(Tier::remote)] > 0;
}

}  // namespace

void LinkRate::note(double units, double seconds) noexcept {
  if (!(units > 0) || !(seconds > 0)) return;
  weight_ = kLinkMemory * weight_ + 1;
  x_ = kLinkMemory * x_ + units;
  y_ = kLinkMemory * y_ + seconds;
  xx_ = kLinkMemory * xx_ + units * units;
  xy_ = kLinkMemory * xy_ + units * seconds;
  const double mean = x_ / weight_;
  const double variance = xx_ / weight_ - mean * mean;
  fixed_ = 0;
  per_unit_ = y_ / x_;
  // With loads of about one size the two cannot be told apart.
  if (variance < 0.01 * mean * mean) return;
  const double slope = (xy_ / weight_ - mean * y_ / weight_) / variance;
  const double fixed = y_ / weight_ - slope * mean;
  if (slope <= 0) return;
  if (fixed >= 0) {
    fixed_ = fixed;
    per_unit_ = slope;
  } else {
    per_unit_ = xy_ / xx_;
  }
}

StepWork StepWork::of(std::uint32_t first, std::uint32_t end, std::uint32_t step_tokens) noexcept {
  const double a = first;
  const double b = std::max(first, end);
  return {std::ceil((b - a) / std::max(step_tokens, 1U)), b - a, (b * (b + 1) - a * (a + 1)) / 2};
}

StepWork& StepWork::operator+=(const StepWork& other) noexcept {
  steps += other.steps;
  rows += other.rows;
  pairs += other.pairs;
  return *this;
}

void ComputeRate::note(const StepWork& work, double seconds) noexcept {
  if (!(seconds > 0)) return;
  known_ = true;
  const std::array<double, 3> x{work.steps, work.rows, work.pairs};
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      products_[i][j] = kComputeMemory * products_[i][j] + x[i] * x[j];
    }
    targets_[i] = kComputeMemory * targets_[i] + x[i] * seconds;
  }
  solve();
}

// The non-negative least squares, by trying every subset of the three costs.
void ComputeRate::solve() noexcept {
  double best = std::numeric_limits<double>::infinity();
  for (unsigned set = 1; set < 8; ++set) {
    std::array<std::array<double, 4>, 3> m{};
    for (std::size_t i = 0; i < 3; ++i) {
      const bool in = (set >> i & 1) != 0;
      for (std::size_t j = 0; j < 3; ++j) m[i][j] = in && (set >> j & 1) != 0 ? products_[i][j] : 0;
      // What observations cannot tell apart comes out equal instead of infinite.
      m[i][i] = in ? products_[i][i] * (1 + 1e-9) : 1;
      m[i][3] = in ? targets_[i] : 0;
    }
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t row = 0; row < 3; ++row) {
        if (row == i) continue;
        const double factor = m[row][i] / m[i][i];
        for (std::size_t j = i; j < 4; ++j) m[row][j] -= factor * m[i][j];
      }
    }
    std::array<double, 3> costs{};
    for (std::size_t i = 0; i < 3; ++i) costs[i] = m[i][3] / m[i][i];
    if (std::ranges::any_of(costs, [](double c) { return !(c >= 0) || !std::isfinite(c); }))
      continue;
    double left = 0;  // squared residuals but for a constant
    for (std::size_t i = 0; i < 3; ++i) {
      left -= 2 * costs[i] * targets_[i];
      for (std::size_t j = 0; j < 3; ++j) left += costs[i] * costs[j] * products_[i][j];
    }
    if (left >= best) continue;
    best = left;
    costs_ = costs;
  }
}

double ComputeRate::seconds(const StepWork& work) const noexcept {
  return costs_[0] * work.steps + costs_[1] * work.rows + costs_[2] * work.pairs;
}

void CostModel::note_arrival(Tier from, double bytes, double seconds) noexcept {
  links_[index_of(from)].note(bytes, seconds);
}

void CostModel::note_copy(Tier from, double bytes, double seconds) noexcept {
  links_[index_of(from)].note(bytes, seconds);
}

void CostModel::note_compute(const StepWork& work, double seconds) noexcept {
  compute_.note(work, seconds);
}

// What is in no memory is read to it, and copied from there.
std::optional<double> CostModel::load_seconds(const RangeBytes& bytes) const noexcept {
  double seconds = 0;
  for (const Tier tier : kAllTiersWithRemote) {
    const double count = bytes.of_tier[index_of(tier)];
    if (count <= 0) continue;
    const LinkRate& link = links_[index_of(tier)];
    if (!link.known()) return std::nullopt;
    seconds += link.seconds(count);
    if (!is_slow(tier)) continue;
    const LinkRate& memory = links_[index_of(Tier::host)];
    if (memory.known()) seconds += memory.seconds(count);
  }
  return seconds;
}

std::optional<double> CostModel::compute_seconds(const StepWork& work) const noexcept {
  if (!compute_.known()) return std::nullopt;
  return compute_.seconds(work);
}

LoadPlan CostModel::plan(const RangeBytes& bytes, const StepWork& work) const noexcept {
  LoadPlan plan;
  const auto load = load_seconds(bytes);
  const auto compute = compute_seconds(work);
  plan.load_s = load.value_or(0);
  plan.compute_s = compute.value_or(0);
  if (!load || !compute) {
    // A disk or a network may be slower or faster than computing by any factor: both at once goes
    // at worst a little slower than the better, whichever that is. Memory is hardly ever the
    // slower.
    plan.mode = any_slow(bytes) ? LoadMode::both : LoadMode::load;
    plan.reason = !load ? LoadReason::tier_not_measured : LoadReason::compute_not_measured;
    return plan;
  }
  const double better = std::min(*load, *compute);
  plan.both_s = *load + *compute > 0 ? *load * *compute / (*load + *compute) : 0;
  if (plan.both_s <= kBothGain * better && any_slow(bytes)) {
    plan.mode = LoadMode::both;
    plan.reason = LoadReason::both_is_faster;
  } else if (*load <= *compute) {
    plan.mode = LoadMode::load;
    plan.reason = LoadReason::load_is_faster;
  } else {
    plan.mode = LoadMode::compute;
    plan.reason = LoadReason::compute_is_faster;
  }
  return plan;
}

}  // namespace kvtier::engine
