#include "bench/serve/serve_statistics.h"

#include <gtest/gtest.h>

#include <numeric>

namespace kvtier::bench {
namespace {

Served served(double due_s, std::vector<double> token_s) {
  Served made;
  made.due_s = due_s;
  made.ended_s = token_s.back();
  made.token_s = std::move(token_s);
  return made;
}

TEST(ServeStatistics, takes_percentiles_by_nearest_rank) {
  std::vector<double> values(200);
  std::iota(values.rbegin(), values.rend(), 1);
  EXPECT_EQ(median(values), 101);
  EXPECT_EQ(percentile(values, 0.99), 199);
  EXPECT_EQ(percentile(values, 1), 200);
  std::vector<double> one{5};
  EXPECT_EQ(percentile(one, 0.99), 5);
}

TEST(ServeStatistics, counts_the_first_token_from_when_it_was_due_and_gaps_between_tokens) {
  Pass pass;
  pass.served = {served(1, {1.5, 1.6, 1.9}), served(2, {2.1, 2.3})};
  pass.seconds = 4;
  const Summary summary = summarise(pass);
  EXPECT_EQ(summary.requests, 2U);
  EXPECT_DOUBLE_EQ(summary.requests_per_s, 0.5);
  EXPECT_NEAR(summary.first_token_p50_ms, 500, 1e-6);
  EXPECT_NEAR(summary.first_token_p99_ms, 500, 1e-6);
  EXPECT_NEAR(summary.inter_token_p50_ms, 200, 1e-6);
  EXPECT_NEAR(summary.inter_token_p99_ms, 300, 1e-6);
}

TEST(ServeStatistics, tells_where_the_tokens_of_the_prompts_came_from) {
  Pass pass;
  pass.served = {served(0, {1}), served(0, {1})};
  pass.seconds = 1;
  pass.served[0].usage.prompt_tokens = 100;
  pass.served[0].usage.cached_local = 20;
  pass.served[0].usage.cached_tiers = {10, 5, 5};
  pass.served[1].usage.prompt_tokens = 100;
  const Summary summary = summarise(pass);
  EXPECT_EQ(summary.computed_tokens(), 160U);
  EXPECT_EQ(summary.own_pages_tokens, 20U);
  EXPECT_EQ(summary.tier_tokens[index_of(Tier::device)], 10U);
  EXPECT_EQ(summary.inter_token_p50_ms, 0);
}

TEST(ServeStatistics, of_a_pass_that_served_nothing_are_zero) {
  EXPECT_EQ(summarise({}).requests_per_s, 0);
}

TEST(ServeStatistics, allow_as_many_late_requests_as_the_percentile_does_not_see) {
  for (const std::size_t requests : {1U, 2U, 16U, 99U, 100U, 101U, 250U, 1000U}) {
    const std::size_t allowed = late_allowed(requests);
    std::vector<double> values(requests, 0.0);
    std::fill_n(values.begin(), allowed, 1.0);
    EXPECT_EQ(percentile(values, 0.99), 0) << requests;
    values.assign(requests, 0.0);
    std::fill_n(values.begin(), allowed + 1, 1.0);
    EXPECT_EQ(percentile(values, 0.99), 1) << requests;
  }
  EXPECT_EQ(late_allowed(0), 0U);
}

}  // namespace
}  // namespace kvtier::bench
