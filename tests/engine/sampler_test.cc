#include "engine_adapter/engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace kvtier::engine::test {
namespace {

constexpr int kDraws = 20000;

std::map<Token, int> draws(const SamplerOptions& options, const std::vector<float>& logits) {
  Sampler sampler(options);
  std::map<Token, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[sampler.choose(logits)];
  return counts;
}

TEST(Sampler, TakesTheLowestIdAmongTheLikeliest) {
  Sampler sampler({});
  EXPECT_EQ(sampler.choose(std::vector<float>{1, 3, 2, 3}), 1U);
  EXPECT_EQ(sampler.choose(std::vector<float>{-1}), 0U);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(sampler.choose(std::vector<float>{nan, -5, nan}), 1U);
}

TEST(Sampler, GivesTheSameTokensForTheSameSeed) {
  const std::vector<float> logits{0.5F, 1, 0.2F, 0.9F};
  const auto sequence = [&](std::uint64_t seed) {
    Sampler sampler({.temperature = 1, .seed = seed});
    std::vector<Token> tokens;
    for (int i = 0; i < 64; ++i) tokens.push_back(sampler.choose(logits));
    return tokens;
  };
  EXPECT_EQ(sequence(3), sequence(3));
  EXPECT_NE(sequence(3), sequence(4));
}

TEST(Sampler, FollowsTheDistribution) {
  const std::vector<float> logits{std::log(0.5F), std::log(0.3F), std::log(0.2F)};
  auto counts = draws({.temperature = 1, .seed = 1}, logits);
  EXPECT_NEAR(counts[0], 0.5 * kDraws, 0.02 * kDraws);
  EXPECT_NEAR(counts[1], 0.3 * kDraws, 0.02 * kDraws);
  EXPECT_NEAR(counts[2], 0.2 * kDraws, 0.02 * kDraws);
  // At half the temperature the probabilities are squared.
  counts = draws({.temperature = 0.5, .seed = 1}, logits);
  EXPECT_NEAR(counts[0], 0.25 / 0.38 * kDraws, 0.02 * kDraws);
}

TEST(Sampler, ChoosesAmongTheTopKOnly) {
  const std::vector<float> logits{1, 2, 2, 2, 0};
  const auto counts = draws({.temperature = 10, .top_k = 2, .seed = 1}, logits);
  EXPECT_EQ(counts.size(), 2U);
  EXPECT_TRUE(counts.contains(1) && counts.contains(2));
}

TEST(Sampler, ChoosesAmongTheFewestThatHoldTopP) {
  const std::vector<float> logits{std::log(0.2F), std::log(0.5F), std::log(0.3F)};
  const auto kept = [&](double top_p) {
    return draws({.temperature = 1, .top_p = top_p, .seed = 1}, logits).size();
  };
  EXPECT_EQ(kept(1e-9), 1U);
  EXPECT_EQ(kept(0.49), 1U);
  EXPECT_EQ(kept(0.6), 2U);
  EXPECT_EQ(kept(0.9), 3U);
  EXPECT_EQ(kept(1), 3U);
}

TEST(Sampler, RefusesOptionsOutOfRange) {
  EXPECT_TRUE(SamplerOptions{}.validate());
  EXPECT_FALSE((SamplerOptions{.temperature = -1}.validate()));
  EXPECT_FALSE((SamplerOptions{.temperature = std::nan("")}.validate()));
  EXPECT_FALSE((SamplerOptions{.top_p = 0}.validate()));
  EXPECT_FALSE((SamplerOptions{.top_p = 1.1}.validate()));
}

TEST(SplitMix64, GivesThePublishedNumbers) {
  SplitMix64 random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317ULL);
  EXPECT_EQ(random.next(), 3203168211198807973ULL);
  EXPECT_EQ(random.next(), 9817491932198370423ULL);
}

}  // namespace
}  // namespace kvtier::engine::test
