// First tokens, known by hand: 100 tokens a block, and 0.1 s to compute one.
#include <gtest/gtest.h>

#include "bench/fleet/first_token.h"

namespace kvtier::bench {
namespace {

constexpr std::uint64_t kBlockBytes = 1'000'000;
constexpr double kNear = 1e-6;

class FleetFirstToken : public ::testing::Test {
 protected:
  FleetFirstToken() {
    rates.compute_tokens_per_s = 1000;
    rates.half_rate_tokens = 1e15;
    rates.fixed_ms = 0;
    rates.link_bytes_per_s = 1e15;
    rates.network_latency_ms = 0;
  }
  HostTime host(double network = 1e15) { return {rates, network, kBlockBytes, 100, first_tokens}; }
  static double a_block_in(double seconds) { return kBlockBytes / seconds; }

  Rates rates;
  std::vector<double> first_tokens;
  StoreLines store;
};

TEST_F(FleetFirstToken, prompts_are_computed_one_after_the_other) {
  HostTime time = host();
  time.arrive({.at_s = 0, .prompt_tokens = 500}, store);
  time.arrive({.at_s = 0.1, .prompt_tokens = 500}, store);
  time.arrive({.at_s = 3, .prompt_tokens = 200}, store);
  EXPECT_NEAR(time.finish(), 3.2, kNear);
  ASSERT_EQ(first_tokens.size(), 3U);
  EXPECT_NEAR(first_tokens[0], 0.5, kNear);
  EXPECT_NEAR(first_tokens[1], 0.9, kNear);
  EXPECT_NEAR(first_tokens[2], 0.2, kNear);
  EXPECT_NEAR(time.busy_s(), 1.2, kNear);
}

TEST_F(FleetFirstToken, a_token_behind_many_takes_longer) {
  rates.half_rate_tokens = 1000;
  const HostTime time = host();
  EXPECT_NEAR(time.compute_s(0, 1000), 1.5, kNear);
  EXPECT_NEAR(time.compute_s(1000, 1000), 2.5, kNear);
  EXPECT_NEAR(time.compute_s(0, 2000), 1.5 + 2.5, kNear);
}

TEST_F(FleetFirstToken, the_defaults_are_near_what_was_measured) {
  rates = {};
  const HostTime time = host();
  EXPECT_NEAR(time.compute_s(0, 2048), 0.0498, 0.001);
  EXPECT_NEAR(time.compute_s(0, 8192), 0.209, 0.011);
  EXPECT_NEAR(time.compute_s(0, 32'768), 1.189, 0.01);
}

TEST_F(FleetFirstToken, what_was_hit_in_memory_crosses_the_link_and_the_rest_is_computed) {
  rates.link_bytes_per_s = a_block_in(0.01);
  rates.fixed_ms = 5;
  HostTime time = host();
  time.arrive({.at_s = 1, .prompt_tokens = 1000, .host_blocks = 7}, store);
  time.finish();
  EXPECT_NEAR(first_tokens.at(0), 0.07 + 0.3 + 0.005, kNear);
}

TEST_F(FleetFirstToken, a_prompt_that_was_hit_as_a_whole_computes_one_token) {
  HostTime time = host();
  time.arrive({.at_s = 0, .prompt_tokens = 1000, .host_blocks = 10}, store);
  time.finish();
  EXPECT_NEAR(first_tokens.at(0), 0.001, kNear);
}

TEST_F(FleetFirstToken, who_is_ready_first_goes_first) {
  rates.disk_bytes_per_s = a_block_in(1);
  rates.always_load = true;
  HostTime time = host();
  time.arrive({.at_s = 0, .prompt_tokens = 600, .disk_blocks = 5}, store);
  time.arrive({.at_s = 1, .prompt_tokens = 1000}, store);
  time.finish();
  EXPECT_NEAR(first_tokens.at(0), 1, kNear);
  EXPECT_NEAR(first_tokens.at(1), 5.1, kNear);
}

TEST_F(FleetFirstToken, loading_from_the_back_meets_computing_from_the_front) {
  rates.disk_bytes_per_s = a_block_in(0.1);
  HostTime time = host();
  const Loaded loaded = time.arrive({.at_s = 0, .prompt_tokens = 1100, .disk_blocks = 10}, store);
  time.finish();
  EXPECT_EQ(loaded.disk_blocks, 5U);
  EXPECT_NEAR(first_tokens.at(0), 0.5 + 0.1, kNear);
}

TEST_F(FleetFirstToken, nothing_is_loaded_where_that_takes_longer_than_to_compute_all) {
  rates.network_latency_ms = 10;
  HostTime time = host(a_block_in(10));
  const Loaded loaded = time.arrive(
      {.at_s = 0, .prompt_tokens = 1000, .remote_blocks = 9, .asked_remote = true}, store);
  time.finish();
  EXPECT_EQ(loaded.remote_blocks, 0U);
  EXPECT_NEAR(first_tokens.at(0), 0.01 + 1, kNear);
}

TEST_F(FleetFirstToken, while_the_gpu_has_others_to_compute_all_is_loaded) {
  rates.disk_bytes_per_s = a_block_in(0.3);
  HostTime time = host();
  time.arrive({.at_s = 0, .prompt_tokens = 10'000}, store);
  const Loaded loaded = time.arrive({.at_s = 0, .prompt_tokens = 1100, .disk_blocks = 10}, store);
  time.finish();
  EXPECT_EQ(loaded.disk_blocks, 10U);
  EXPECT_NEAR(first_tokens.at(1), 10.1, kNear);
}

TEST_F(FleetFirstToken, what_is_loaded_makes_the_first_token_come_no_later_than_any_other_part) {
  for (const double a_block : {0.01, 0.07, 0.1, 0.13, 0.4}) {
    for (const double busy_tokens : {1.0, 450.0, 5000.0}) {
      rates.disk_bytes_per_s = a_block_in(a_block);
      first_tokens.clear();
      HostTime time = host();
      time.arrive({.at_s = 0, .prompt_tokens = static_cast<std::uint64_t>(busy_tokens)}, store);
      time.arrive({.at_s = 0, .prompt_tokens = 2000, .disk_blocks = 19}, store);
      time.finish();
      double best = 1e9;
      for (int part = 0; part <= 19; ++part)
        best = std::min(best, std::max(part * a_block, busy_tokens / 1000 + (19 - part) * 0.1));
      EXPECT_NEAR(first_tokens.at(1), best + 0.1, kNear) << a_block << ", " << busy_tokens;
    }
  }
}

TEST_F(FleetFirstToken, a_port_serves_its_host_and_the_store_serves_all) {
  rates.always_load = true;
  rates.network_latency_ms = 1;
  rates.remote_bytes_per_s = a_block_in(1);
  HostTime one = host(), other = host(a_block_in(5));
  const LookedUp found{.at_s = 0, .prompt_tokens = 300, .remote_blocks = 2, .asked_remote = true};
  one.arrive(found, store);
  other.arrive(found, store);
  one.arrive(found, store);
  one.finish();
  other.finish();
  ASSERT_EQ(first_tokens.size(), 3U);
  EXPECT_NEAR(first_tokens[0], 0.002 + 2 + 0.1, kNear);
  EXPECT_NEAR(first_tokens[1], 0.002 + 6 + 0.1, kNear);   // behind both others in the store
  EXPECT_NEAR(first_tokens[2], 0.002 + 10 + 0.1, kNear);  // its own port takes longer
}

TEST_F(FleetFirstToken, a_write_waits_as_long_as_its_block_is_not_there_and_a_second_more) {
  HostTime time = host(a_block_in(1));
  EXPECT_EQ(time.write(0, 5, 0, store), 2U);
  EXPECT_EQ(time.write(0.5, 1, 0, store), 0U);  // 1.5 s are left
  EXPECT_EQ(time.write(1, 1, 0, store), 1U);
  HostTime idle = host(a_block_in(1));
  EXPECT_EQ(idle.write(0, 5, 5, store), 5U);
}

}  // namespace
}  // namespace kvtier::bench
