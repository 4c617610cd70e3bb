// Which chances are worth a write, and that the budget is held by that.
#include "daemon/cache/policy/write_budget.h"

#include <gtest/gtest.h>

#include <random>

namespace kvtier::daemon {
namespace {

// Blocks of chances between 0 and 1 come, of which so large a part may be written; the part that
// was, after a while.
double part_written(WriteBudget& budget, double part, int seconds) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> chance(0, 1);
  int came = 0, written = 0;
  for (int second = 0; second < seconds; ++second) {
    for (int i = 0; i < 20; ++i) {
      budget.allow(100 * part);
      const bool admitted = budget.admits(chance(random));
      if (admitted) budget.wrote(100);
      if (second < seconds / 2) continue;
      ++came;
      written += admitted ? 1 : 0;
    }
    budget.step();
  }
  return static_cast<double>(written) / came;
}

TEST(WriteBudget, without_one_all_is_written_that_may_come_again) {
  WriteBudget budget;
  EXPECT_TRUE(budget.admits(1));
  EXPECT_TRUE(budget.admits(WriteBudget::kChanceMin));
  EXPECT_FALSE(budget.admits(0));
  for (int i = 0; i < 1000; ++i) budget.step();
  EXPECT_TRUE(budget.admits(WriteBudget::kChanceMin));
}

TEST(WriteBudget, is_held_by_what_is_likeliest_to_come_again) {
  for (const double part : {0.25, 0.5, 0.75}) {
    WriteBudget budget;
    EXPECT_NEAR(part_written(budget, part, 4000), part, 0.05) << part;
    EXPECT_NEAR(budget.threshold(), 1 - part, 0.1) << part;
  }
}

TEST(WriteBudget, that_is_larger_than_what_comes_lets_the_threshold_fall_again) {
  WriteBudget budget;
  part_written(budget, 0.25, 4000);
  part_written(budget, 2, 4000);
  EXPECT_EQ(budget.threshold(), WriteBudget::kChanceMin);
}

// A minute of four times as much is written before the threshold shuts it out.
TEST(WriteBudget, a_burst_after_little_is_written) {
  WriteBudget budget;
  for (int second = 0; second < 600; ++second) {
    budget.allow(100);
    budget.step();
  }
  for (int second = 0; second < 60; ++second) {
    EXPECT_TRUE(budget.admits(0.1)) << second;
    budget.wrote(400);
    budget.allow(100);
    budget.step();
  }
  int written = 0;
  constexpr int kLonger = 3000;
  for (int second = 0; second < kLonger; ++second) {
    if (budget.admits(0.1)) {
      budget.wrote(400);
      ++written;
    }
    budget.allow(100);
    budget.step();
  }
  EXPECT_LT(written, kLonger / 3);
}

}  // namespace
}  // namespace kvtier::daemon
