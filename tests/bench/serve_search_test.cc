#include "bench/serve/serve_search.h"

#include <gtest/gtest.h>

namespace kvtier::bench {
namespace {

using namespace std::chrono_literals;

SearchOptions options_from(double start) {
  SearchOptions options;
  options.start = start;
  options.step = 1.1;
  options.most = 1000;
  options.until = Clock::now() + 1h;
  return options;
}

auto up_to(double most) {
  return [most](double rate) { return rate <= most; };
}

TEST(ServeSearch, finds_the_rate_from_below_and_from_above) {
  for (const double start : {1.0, 7.9, 8.1, 300.0}) {
    const FoundRate found = find_rate(options_from(start), up_to(8));
    EXPECT_LE(found.held, 8) << start;
    EXPECT_GT(found.missed, 8) << start;
    EXPECT_NEAR(found.missed / found.held, 1.1, 1e-9) << start;
  }
}

TEST(ServeSearch, goes_on_from_a_rate_that_is_known_to_hold) {
  SearchOptions options = options_from(8.8);
  options.held = 8;
  const FoundRate found = find_rate(options, up_to(8.5));
  EXPECT_EQ(found.held, 8);
  EXPECT_EQ(found.missed, 8.8);
  EXPECT_EQ(found.trials, 1);
}

TEST(ServeSearch, tries_no_rate_above_the_most) {
  SearchOptions options = options_from(4);
  options.most = 5;
  const FoundRate found = find_rate(options, [](double rate) {
    EXPECT_LE(rate, 5);
    return true;
  });
  EXPECT_GT(found.held, 4);
  EXPECT_EQ(found.missed, 0);
}

TEST(ServeSearch, ends_where_no_rate_holds) {
  const FoundRate found = find_rate(options_from(4), up_to(0));
  EXPECT_EQ(found.held, 0);
  EXPECT_LT(found.missed, 4);
}

TEST(ServeSearch, begins_no_trial_after_its_time) {
  SearchOptions options = options_from(4);
  options.until = Clock::now() - 1ns;
  EXPECT_EQ(find_rate(options, up_to(8)).trials, 0);
}

}  // namespace
}  // namespace kvtier::bench
