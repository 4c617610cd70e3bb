#include "engine_adapter/reference/scheduler/prefix/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine_adapter/reference/model/sampler.h"

namespace kvtier::engine::test {
namespace {

constexpr double kFixed = 0.002, kRate = 1e9;
constexpr double kPerStep = 0.004, kPerRow = 2e-4, kPerPair = 3e-8;

double true_compute(const StepWork& work) {
  return kPerStep * work.steps + kPerRow * work.rows + kPerPair * work.pairs;
}

// Measured with some noise.
CostModel measured(double rate, double noise = 0.02) {
  CostModel model;
  SplitMix64 random(7);
  const auto noisy = [&](double seconds) {
    return seconds * (1 + noise * (2 * random.next_unit() - 1));
  };
  for (int i = 0; i < 60; ++i) {
    const double bytes = 1e6 * (1 + 50 * random.next_unit());
    model.note_arrival(Tier::disk, bytes, noisy(kFixed + bytes / rate));
    const auto first = static_cast<std::uint32_t>(random.next() % 30000);
    const auto work =
        StepWork::of(first, first + 64 + static_cast<std::uint32_t>(random.next() % 448), 512);
    model.note_compute(work, noisy(true_compute(work)));
  }
  return model;
}

RangeBytes on_disk(double bytes) {
  RangeBytes range;
  range.of_tier[index_of(Tier::disk)] = bytes;
  return range;
}

TEST(CostModel, LearnsFixedTimeAndRateOfATier) {
  const CostModel model = measured(kRate);
  for (const double bytes : {2e6, 4e7, 4e8}) {
    EXPECT_NEAR(*model.load_seconds(on_disk(bytes)), kFixed + bytes / kRate,
                0.06 * (kFixed + bytes / kRate));
  }
}

TEST(CostModel, LearnsThatAttentionGrowsWithTheContext) {
  const CostModel model = measured(kRate);
  for (const std::uint32_t first : {0U, 8192U, 32768U}) {
    const StepWork work = StepWork::of(first, first + 4096, 512);
    EXPECT_NEAR(*model.compute_seconds(work), true_compute(work), 0.06 * true_compute(work));
  }
  EXPECT_GT(*model.compute_seconds(StepWork::of(32768, 36864, 512)),
            2 * *model.compute_seconds(StepWork::of(0, 4096, 512)));
}

TEST(CostModel, ForgetsWhatADiskOnceWas) {
  CostModel model = measured(kRate);
  for (int i = 0; i < 40; ++i) {
    const double bytes = 1e6 * (1 + i);
    model.note_arrival(Tier::disk, bytes, bytes / (kRate / 10));
  }
  EXPECT_NEAR(*model.load_seconds(on_disk(1e8)), 1e8 / (kRate / 10), 0.1);
}

TEST(CostModel, ChoosesTheFasterAndBothWhereTheyAreNear) {
  const StepWork work = StepWork::of(0, 8192, 512);
  const double compute = true_compute(work);
  const auto plan_at = [&](double load_over_compute) {
    return measured(kRate).plan(on_disk(kRate * (compute * load_over_compute - kFixed)), work);
  };
  EXPECT_EQ(plan_at(0.02).mode, LoadMode::load);
  EXPECT_EQ(plan_at(0.02).reason, LoadReason::load_is_faster);
  for (const double ratio : {0.34, 0.6, 1.0, 1.8, 2.9}) {
    const LoadPlan plan = plan_at(ratio);
    EXPECT_EQ(plan.mode, LoadMode::both) << ratio;
    EXPECT_LT(plan.both_s, 0.8 * std::min(plan.load_s, plan.compute_s));
  }
  EXPECT_EQ(plan_at(30).mode, LoadMode::compute);
  EXPECT_EQ(plan_at(30).reason, LoadReason::compute_is_faster);
}

// Blocks of 16 tokens and 1 MiB, on disks of 0.2 to 5 GB/s, whose times are measured with noise.
TEST(CostModel, TakesNoWayThatIsMoreThanAFewPerCentSlowerThanTheBetter) {
  for (const double rate : {0.2e9, 1e9, 5e9}) {
    for (const double noise : {0.0, 0.02, 0.05}) {
      const CostModel model = measured(rate, noise);
      for (std::uint32_t tokens = 512; tokens <= 65536; tokens *= 2) {
        const double bytes = tokens * (1048576.0 / 16);
        const StepWork work = StepWork::of(0, tokens, 512);
        const double load = kFixed + bytes / rate;
        const double compute = true_compute(work);
        const LoadMode mode = model.plan(on_disk(bytes), work).mode;
        const double taken = mode == LoadMode::load      ? load
                             : mode == LoadMode::compute ? compute
                                                         : load * compute / (load + compute);
        EXPECT_LE(taken, 1.05 * std::min(load, compute))
            << rate << " B/s, " << tokens << " tokens: " << name(mode);
        const double ratio = load / compute;
        EXPECT_TRUE(mode == LoadMode::both || ratio <= 1 / 2.9 || ratio >= 2.9) << ratio;
      }
    }
  }
}

TEST(CostModel, WithNothingMeasuredTheDiskIsTriedBesideComputingAndMemoryIsTrusted) {
  const CostModel model;
  const StepWork work = StepWork::of(0, 8192, 512);
  EXPECT_EQ(model.plan(on_disk(1e8), work).mode, LoadMode::both);
  EXPECT_EQ(model.plan(on_disk(1e8), work).reason, LoadReason::tier_not_measured);
  RangeBytes host;
  host.of_tier[index_of(Tier::host)] = 1e8;
  EXPECT_EQ(model.plan(host, work).mode, LoadMode::load);
}

TEST(CostModel, LoadsOfOneSizeSayNothingAboutTheFixedTime) {
  LinkRate link;
  for (int i = 0; i < 20; ++i) link.note(1e6, 0.003);
  EXPECT_EQ(link.fixed_s(), 0);
  EXPECT_NEAR(link.seconds(1e6), 0.003, 1e-9);
}

}  // namespace
}  // namespace kvtier::engine::test
