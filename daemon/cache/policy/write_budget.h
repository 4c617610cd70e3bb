// Which blocks are worth a write to disk, held to a budget of writes: those whose chance to be used
// again, while the disk would keep them, is above a threshold. While more is written than the
// budget allows the threshold rises, and while less it falls.
//
// What is written and what is allowed are sums of which a part is forgotten at each step, and the
// threshold moves by a part of itself, so that the budget is held over some minutes: a burst of a
// minute is written, if what came before it was little.
//
// Owned by the control thread.
#pragma once

namespace kvtier::daemon {

class WriteBudget {
 public:
  static constexpr double kChanceMin = 0.02;  // what hardly ever comes again is not written
  static constexpr double kChanceMax = 0.9;

  // `chance`: from 0 to 1, of a block (HitRates::chance).
  bool admits(double chance) const noexcept { return chance >= threshold_; }
  double threshold() const noexcept { return threshold_; }

  void wrote(double bytes) noexcept { written_ += bytes; }
  // So many bytes more may have been written by now.
  void allow(double bytes) noexcept { allowed_ += bytes; }
  // About once a second.
  void step() noexcept;

 private:
  double threshold_ = kChanceMin;
  double written_ = 0, allowed_ = 0;  // bytes
};

}  // namespace kvtier::daemon
