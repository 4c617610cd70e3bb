#include "engine_adapter/reference/model/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
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

// The rule, with everything sorted.
Token chosen_by_sorting(const std::vector<float>& logits, const SamplerOptions& options,
                        double unit) {
  std::vector<Token> order;
  for (Token i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) order.push_back(i);
  }
  std::ranges::stable_sort(order, [&](Token a, Token b) { return logits[a] > logits[b]; });
  if (options.top_k != 0 && options.top_k < order.size()) order.resize(options.top_k);
  std::vector<double> weights;
  double total = 0;
  for (const Token token : order) {
    weights.push_back(std::exp((static_cast<double>(logits[token]) - logits[order.front()]) /
                               options.temperature));
    total += weights.back();
  }
  double kept = 0;
  std::size_t count = 0;
  while (count < order.size() && (count == 0 || kept < options.top_p * total)) {
    kept += weights[count++];
  }
  double left = unit * kept;
  for (std::size_t i = 0; i < count; ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[count - 1];
}

std::vector<float> drawn_logits(std::size_t count, std::uint64_t seed, bool with_ties) {
  SplitMix64 random(seed);
  std::vector<float> logits;
  for (std::size_t i = 0; i < count; ++i) {
    const double value = 12 * random.next_unit();
    logits.push_back(static_cast<float>(with_ties ? std::floor(value) : value));
  }
  for (std::size_t i = 3; i < count; i += 97) logits[i] = std::numeric_limits<float>::quiet_NaN();
  return logits;
}

TEST(Sampler, ChoosesWithoutSortingWhatSortingWouldChoose) {
  SplitMix64 random(9);
  for (const std::size_t count : {1U, 2U, 63U, 64U, 65U, 130U, 1000U, 5000U}) {
    for (int i = 0; i < 60; ++i) {
      const auto logits = drawn_logits(count, random.next(), i % 2 == 0);
      constexpr double kTopPs[] = {1, 0.95, 0.5, 0.01};
      constexpr std::uint32_t kTopKs[] = {0, 1, 40, 900};
      const SamplerOptions options{.temperature = 0.1 + 2 * random.next_unit(),
                                   .top_k = kTopKs[random.next() % 4],
                                   .top_p = kTopPs[random.next() % 4]};
      const double unit = random.next_unit();
      EXPECT_EQ(choose(logits, options, unit), chosen_by_sorting(logits, options, unit))
          << count << " " << options.temperature << " " << options.top_k << " " << options.top_p
          << " " << unit;
    }
  }
}

TEST(Sampler, FindsTheLikeliestTokensWithoutSorting) {
  for (const std::size_t count : {0U, 1U, 5U, 128U, 20'000U}) {
    for (const bool with_ties : {false, true}) {
      auto logits = drawn_logits(20'000, count + 1, with_ties);
      if (count == 5) {  // every one is likelier yet
        std::erase_if(logits, [](float logit) { return std::isnan(logit); });
        std::ranges::sort(logits);
      }
      const auto found = likeliest_tokens(logits, count, 2.5);
      std::vector<Token> order;
      for (Token i = 0; i < logits.size(); ++i) {
        if (!std::isnan(logits[i])) order.push_back(i);
      }
      std::ranges::stable_sort(order, [&](Token a, Token b) { return logits[a] > logits[b]; });
      order.resize(std::min(count, order.size()));
      ASSERT_EQ(found.size(), order.size());
      for (std::size_t i = 0; i < order.size(); ++i) {
        EXPECT_EQ(found[i].token, order[i]);
        EXPECT_EQ(found[i].logprob, static_cast<float>(logits[order[i]] - 2.5));
      }
    }
  }
  EXPECT_EQ(likeliest_tokens(std::vector<float>{1, 3}, 5, 0).size(), 2U);
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
