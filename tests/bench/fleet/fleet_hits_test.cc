// Where blocks hit in small fleets, known by hand.
#include <gtest/gtest.h>

#include "bench/fleet/fleet.h"
#include "tests/bench/fleet/fleet_traces.h"

namespace kvtier::bench {
namespace {

using Blocks = std::vector<std::uint64_t>;
const Blocks kA{1, 2, 3}, kB{11, 12, 13}, kC{21, 22, 23};

FleetOptions fleet_of(std::uint32_t hosts, std::uint64_t host_blocks = 100) {
  FleetOptions options;
  options.hosts = hosts;
  options.host_blocks = host_blocks;
  options.block_bytes = 1 << 20;
  return options;
}

FleetFigures run(const daemon::Trace& trace, const FleetOptions& options, Routing routing,
                 std::uint64_t remote_blocks = 0, double network = 1e12) {
  const auto figures =
      simulate(trace, options, {daemon::EvictionPolicy::lru, routing, remote_blocks, network});
  EXPECT_TRUE(figures);
  return *figures;
}

TEST(FleetHits, in_turns_each_host_has_to_see_a_prompt_once) {
  const auto done =
      run(TraceMaker().ask(kA).ask(kA).ask(kA).ask(kA), fleet_of(2), Routing::round_robin);
  EXPECT_EQ(done.requests, 4U);
  EXPECT_EQ(done.blocks, 12U);
  EXPECT_EQ(done.host_hits, 6U);
  EXPECT_EQ(done.all_hits(), 6U);
  EXPECT_DOUBLE_EQ(done.imbalance, 1);
}

TEST(FleetHits, with_a_shared_store_one_host_has_to_compute_it) {
  const auto done =
      run(TraceMaker().ask(kA).ask(kA).ask(kA).ask(kA), fleet_of(2), Routing::round_robin, 100);
  EXPECT_EQ(done.host_hits, 6U);
  EXPECT_EQ(done.remote_hits, 3U);
  EXPECT_EQ(done.written_to_remote, 3U);
  EXPECT_EQ(done.dropped_writes, 0U);
  EXPECT_DOUBLE_EQ(done.imbalance, 2);
}

TEST(FleetHits, the_store_continues_what_a_host_has) {
  const auto done = run(TraceMaker().ask({1, 2}).ask({1, 2, 3, 4}).ask({1, 2, 3, 4, 5}),
                        fleet_of(2), Routing::round_robin, 100);
  EXPECT_EQ(done.host_hits, 2U);         // of the third request
  EXPECT_EQ(done.remote_hits, 2U + 2U);  // of the second and of the third
  EXPECT_EQ(done.written_to_remote, 5U);
}

TEST(FleetHits, a_session_stays_at_its_host_whatever_it_goes_on_with) {
  for (const std::uint32_t hosts : {1U, 2U, 7U}) {
    const auto done = run(TraceMaker().ask(kA).ask(kB).ask({1, 2, 3, 4}).ask({11, 12, 99}),
                          fleet_of(hosts), Routing::session);
    EXPECT_EQ(done.host_hits, 5U) << hosts << " hosts";
  }
}

TEST(FleetHits, what_begins_alike_in_more_blocks_than_tell_the_host_is_one_session) {
  TraceMaker trace;
  for (std::uint64_t i = 0; i < 50; ++i) trace.ask({1, 100 + i});
  FleetOptions options = fleet_of(8);
  options.session_blocks = 1;
  EXPECT_EQ(run(trace, options, Routing::session).host_hits, 49U);
  options.session_blocks = 2;
  const auto apart = run(trace, options, Routing::session);
  EXPECT_LE(apart.host_hits, 49U - 4U);  // over some hosts, each of which computes block 1
  EXPECT_GE(apart.host_hits, 49U - 7U);
}

TEST(FleetHits, by_cache_a_prompt_goes_where_it_is) {
  const auto done = run(TraceMaker().ask(kA).ask(kB).ask(kC).ask(kA).ask(kB).ask(kC), fleet_of(5),
                        Routing::cache);
  EXPECT_EQ(done.host_hits, 9U);
}

TEST(FleetHits, by_cache_a_host_that_computed_too_much_of_late_is_passed_over) {
  FleetOptions options = fleet_of(2);
  options.load_weight = 2;  // 3 blocks of prefix against 6 for the load, which has hardly faded
  EXPECT_EQ(run(TraceMaker().ask(kA).ask(kA), options, Routing::cache).host_hits, 0U);
  options.load_weight = 0.5;
  EXPECT_EQ(run(TraceMaker().ask(kA).ask(kA), options, Routing::cache).host_hits, 3U);
  options.load_weight = 2;  // after ten times load_seconds nothing is left of it
  EXPECT_EQ(run(TraceMaker().ask(kA, 300'000).ask(kA), options, Routing::cache).host_hits, 3U);
}

TEST(FleetHits, by_cache_what_a_host_has_removed_draws_nobody) {
  FleetOptions options = fleet_of(2, 3);
  options.load_weight = 0.1;
  // B goes to the host without a load, and C to that of A, whose load has faded longer: A is gone.
  // So A goes to the other one, which has computed less.
  const auto done = run(TraceMaker().ask(kA).ask(kB).ask(kC).ask(kA), options, Routing::cache);
  EXPECT_EQ(done.host_hits, 0U);
  EXPECT_DOUBLE_EQ(done.imbalance, 1);
}

TEST(FleetHits, at_random_all_hosts_get_about_as_much) {
  TraceMaker trace;
  for (std::uint64_t i = 1; i <= 4000; ++i) trace.ask({i}, 10);
  const auto done = run(trace, fleet_of(4, 1000), Routing::random);
  EXPECT_EQ(done.all_hits(), 0U);
  EXPECT_GT(done.imbalance, 1);
  EXPECT_LT(done.imbalance, 1.1);  // 1,000 requests each, give or take 27
}

TEST(FleetHits, what_left_memory_hits_on_disk) {
  FleetOptions options = fleet_of(1, 3);
  options.disk_blocks = 100;
  const auto done = run(TraceMaker().ask(kA).ask(kB).ask(kA).ask(kA), options, Routing::random);
  EXPECT_EQ(done.disk_hits, 3U);
  EXPECT_EQ(done.host_hits, 3U);
  EXPECT_EQ(done.written_to_disk, 6U);
}

TEST(FleetHits, the_store_lets_go_of_what_is_oldest_the_last_of_a_prefix_first) {
  const TraceMaker trace = TraceMaker().ask(kA).ask(kB).ask(kA);
  for (const std::uint64_t room : {3U, 4U, 5U, 6U})
    EXPECT_EQ(run(trace, fleet_of(3), Routing::round_robin, room).remote_hits, room - 3) << room;
}

TEST(FleetHits, what_is_asked_for_in_the_store_is_new_there) {
  // A, B, then A once more, so that C takes B's room.
  const auto done = run(TraceMaker().ask(kA).ask(kB).ask(kA).ask(kC).ask(kA).ask(kB), fleet_of(6),
                        Routing::round_robin, 6);
  EXPECT_EQ(done.remote_hits, 6U);
}

TEST(FleetHits, by_second_use_the_store_gets_what_a_host_finds_at_home) {
  FleetOptions options = fleet_of(3);
  options.remote_admission = RemoteAdmission::second_use;
  const auto once = run(TraceMaker().ask(kA).ask(kA).ask(kA), options, Routing::round_robin, 100);
  EXPECT_EQ(once.written_to_remote, 0U);
  EXPECT_EQ(once.all_hits(), 0U);
  const auto twice =
      run(TraceMaker().ask(kA).ask(kB).ask(kC).ask(kA).ask(kA), options, Routing::round_robin, 100);
  EXPECT_EQ(twice.written_to_remote, 3U);
  EXPECT_EQ(twice.host_hits, 3U);
  EXPECT_EQ(twice.remote_hits, 3U);
}

TEST(FleetHits, writes_that_would_wait_too_long_are_dropped_with_what_is_behind_them) {
  FleetOptions options = fleet_of(2);
  options.rates.compute_tokens_per_s = 1e9;
  options.rates.always_load = true;
  // A block a second: the first at once, the second after one, the third would wait for two.
  const auto done = run(TraceMaker().ask({1, 2, 3, 4, 5}).ask({1, 2, 3, 4, 5}), options,
                        Routing::round_robin, 100, 1 << 20);
  EXPECT_EQ(done.remote_hits, 2U);
  EXPECT_GE(done.dropped_writes, 3U);
}

TEST(FleetHits, copies_of_a_trace_have_nothing_in_common) {
  FleetOptions options = fleet_of(1);
  options.copies = 3;
  const auto done = run(TraceMaker().ask(kA).ask(kA), options, Routing::random, 100);
  EXPECT_EQ(done.requests, 6U);
  EXPECT_EQ(done.host_hits, 9U);
  EXPECT_EQ(done.remote_hits, 0U);
  EXPECT_EQ(done.written_to_remote, 9U);
}

TEST(FleetHits, a_fleet_without_a_block_is_refused) {
  const auto done = simulate(TraceMaker().ask(kA), fleet_of(2, 0), FleetCase{});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Errc::invalid);
}

}  // namespace
}  // namespace kvtier::bench
