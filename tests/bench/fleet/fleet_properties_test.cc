// What holds of every fleet, on traces of conversations.
#include <gtest/gtest.h>

#include "bench/fleet/arrivals.h"
#include "bench/fleet/fleet.h"
#include "tests/bench/fleet/fleet_traces.h"

namespace kvtier::bench {
namespace {

using daemon::EvictionPolicy;

constexpr std::array kBoth{EvictionPolicy::lru, EvictionPolicy::hit_density};

FleetOptions small_fleet(std::uint32_t hosts, std::uint64_t seed) {
  FleetOptions options;
  options.hosts = hosts;
  options.host_blocks = 60;
  options.disk_blocks = seed % 2 * 90;
  options.block_bytes = 1 << 20;
  options.seed = seed;
  return options;
}

TEST(FleetProperties, one_host_hits_and_writes_what_a_replay_of_the_trace_does) {
  for (const std::uint64_t seed : {1U, 2U}) {
    const auto trace = conversations_of(seed, 1500);
    const FleetOptions options = small_fleet(1, seed);
    for (const EvictionPolicy policy : kBoth) {
      const auto alone = *daemon::replay(trace, {policy, options.host_blocks, options.disk_blocks});
      EXPECT_GT(alone.all_hits(), 0U);
      for (const Routing routing : kRoutings) {
        const auto fleet = *simulate(trace, options, {policy, routing});
        EXPECT_EQ(fleet.blocks, alone.blocks);
        EXPECT_EQ(fleet.host_hits, alone.hits[index_of(Tier::host)]) << name(routing);
        EXPECT_EQ(fleet.disk_hits, alone.hits[index_of(Tier::disk)]) << name(routing);
        EXPECT_EQ(fleet.written_to_disk, alone.written) << name(routing);
      }
    }
  }
}

TEST(FleetProperties, a_shared_store_takes_no_hit_from_the_hosts_and_adds_its_own) {
  for (const std::uint64_t seed : {1U, 2U}) {
    const auto trace = conversations_of(seed, 600);
    FleetOptions options = small_fleet(5, seed);
    // Else the hosts would depend on what is computed, and that on the store.
    options.load_weight = 0;
    for (const EvictionPolicy policy : kBoth) {
      for (const Routing routing : kRoutings) {
        const auto without = *simulate(trace, options, {policy, routing, 0});
        for (const std::uint64_t blocks : {1U, 600U}) {
          const auto with = *simulate(trace, options, {policy, routing, blocks});
          EXPECT_EQ(with.host_hits, without.host_hits) << name(routing);
          EXPECT_EQ(with.disk_hits, without.disk_hits) << name(routing);
          EXPECT_GE(with.remote_hits, blocks == 600 ? 1U : 0U) << name(routing);
        }
      }
    }
  }
}

TEST(FleetProperties, with_a_store_that_has_room_for_all_it_hits_as_one_cache_without_an_end) {
  const auto trace = conversations_of(4, 800);
  const auto endless = daemon::replay_endless(trace).all_hits();
  for (const Routing routing : kRoutings) {
    const auto done =
        *simulate(trace, small_fleet(6, 4), {EvictionPolicy::hit_density, routing, 100'000, 1e12});
    EXPECT_EQ(done.all_hits(), endless) << name(routing);
    EXPECT_EQ(done.dropped_writes, 0U);
  }
}

TEST(FleetProperties, the_seed_decides_all) {
  const auto trace = conversations_of(5, 300);
  FleetOptions options = small_fleet(4, 5);
  options.copies = 3;
  for (const Routing routing : kRoutings) {
    const FleetCase fleet{EvictionPolicy::hit_density, routing, 200};
    options.seed = 5;
    const auto first = *simulate(trace, options, fleet);
    EXPECT_EQ(*simulate(trace, options, fleet), first) << name(routing);
    options.seed = 6;
    const bool same = *simulate(trace, options, fleet) == first;
    if (routing != Routing::cache) {  // where chance may decide between equals
      EXPECT_EQ(same, routing != Routing::random) << name(routing);
    }
  }
}

TEST(FleetProperties, requests_come_in_order_whatever_the_copies) {
  const auto trace = conversations_of(6, 300);
  Arrivals arrivals(trace, 4, 20, 2);
  std::array<std::size_t, 4> of_copy{};
  std::uint64_t before = 0;
  while (const auto arrival = arrivals.next()) {
    EXPECT_GE(arrival->at_ms, before);
    before = arrival->at_ms;
    const auto& request = trace.requests[of_copy[arrival->copy]++];
    EXPECT_EQ(arrival->request, &request);
    EXPECT_EQ(arrival->at_ms, static_cast<std::uint64_t>(static_cast<double>(request.at_ms) / 2 +
                                                         5000.0 * arrival->copy));
  }
  for (const std::size_t requests : of_copy) EXPECT_EQ(requests, trace.requests.size());
}

TEST(FleetProperties, faster_requests_wait_longer_and_hit_the_same) {
  const auto trace = conversations_of(7, 1000);
  FleetOptions options = small_fleet(3, 8);
  const FleetCase fleet{EvictionPolicy::lru, Routing::round_robin};
  const auto slow = *simulate(trace, options, fleet);
  options.speed = 20;
  const auto fast = *simulate(trace, options, fleet);
  EXPECT_EQ(fast.all_hits(), slow.all_hits());
  EXPECT_GT(fast.busy, 2 * slow.busy);
  EXPECT_GT(fast.first_token_p99_s, 1.2 * slow.first_token_p99_s);
  EXPECT_LE(fast.busy, 1);
}

}  // namespace
}  // namespace kvtier::bench
