// Requests with a common prefix: pages and loads that they share, and loads that hold up nobody.
#include <gtest/gtest.h>

#include "tests/engine/scheduler/scheduled.h"

namespace kvtier::engine::test {
namespace {

class PrefixSharing : public ScheduledTest {};

TEST_F(PrefixSharing, RequestsShareThePagesOfACommonPrefix) {
  Scheduled scheduled(*model_, nullptr, 64);
  const Request first = request(100, 1);
  scheduled.add(first);
  scheduled.run();
  const auto again = scheduled.add(first);
  scheduled.run();
  EXPECT_EQ(again->result->usage.cached_local, 96U);
  EXPECT_EQ(again->tokens(), alone(first));
  EXPECT_EQ(scheduled.pool().pages_free(), 64U - 6U);
  EXPECT_EQ(scheduled.engine().metrics().pages_used, 0U);
  EXPECT_EQ(scheduled.engine().metrics().local_hits, 96U);
}

TEST_F(PrefixSharing, PagesThatAreKeptGoWhenOthersNeedThem) {
  Scheduled scheduled(*model_, nullptr, 8);
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const Request each = request(100, 10, seed);
    const auto collected = scheduled.add(each);
    scheduled.run();
    EXPECT_EQ(collected->tokens(), alone(each));
  }
  EXPECT_EQ(scheduled.engine().metrics().preemptions, 0U);
}

TEST_F(PrefixSharing, RequestsThatShareALoadingPrefixShareOneLoad) {
  FakeCache cache = make_cache();
  const Request shared = request(100, 8);
  fill(cache, shared);
  cache.loads.clear();
  cache.settle_delay = 6;
  cache.load_delay = 3;
  Scheduled scheduled(*model_, &cache, 64);
  std::vector<std::shared_ptr<Collected>> all;
  for (int i = 0; i < 3; ++i) all.push_back(scheduled.add(shared));
  scheduled.run();
  const auto expected = alone(shared);
  for (const auto& each : all) EXPECT_EQ(each->tokens(), expected);
  EXPECT_EQ(cache.loads.size(), 6U);
  for (const auto& [key, times] : cache.loads) EXPECT_EQ(times, 1);
  EXPECT_EQ(scheduled.engine().metrics().loads, 1U);
  EXPECT_EQ(scheduled.engine().metrics().loads_shared, 2U);
  EXPECT_EQ(all[0]->result->usage.cached_tiers[index_of(Tier::host)], 96U);
  EXPECT_EQ(all[1]->result->usage.cached_local, 96U);
}

TEST_F(PrefixSharing, WhoWaitsForAnothersLoadComputesWhereItFails) {
  FakeCache cache = make_cache();
  const Request shared = request(100, 8);
  fill(cache, shared);
  cache.settle_delay = 4;
  cache.loaded_max = 2;
  Scheduled scheduled(*model_, &cache, 64);
  std::vector<std::shared_ptr<Collected>> all;
  for (int i = 0; i < 3; ++i) all.push_back(scheduled.add(shared));
  scheduled.run();
  for (const auto& each : all) EXPECT_EQ(each->tokens(), alone(shared));
  EXPECT_EQ(scheduled.engine().metrics().loads_failed, 1U);
}

TEST_F(PrefixSharing, ALoadGoesOnForOthersWhenTheRequestThatAskedForItIsCancelled) {
  FakeCache cache = make_cache();
  const Request shared = request(100, 8);
  fill(cache, shared);
  cache.loads.clear();
  cache.settle_delay = 6;
  Scheduled scheduled(*model_, &cache, 64);
  const auto first = scheduled.add(shared);
  const RequestId asker = scheduled.last();
  const auto second = scheduled.add(shared);
  scheduled.engine().turn();
  scheduled.engine().cancel(asker);
  EXPECT_EQ(first->result->answers.at(0).finish, FinishReason::cancelled);
  scheduled.run();
  EXPECT_EQ(second->tokens(), alone(shared));
  EXPECT_EQ(scheduled.engine().metrics().loads, 1U);
  EXPECT_EQ(cache.loads.size(), 6U);
}

TEST_F(PrefixSharing, ALoadHoldsUpNobodyElse) {
  FakeCache cache = make_cache();
  const Request loading = request(100, 4);
  fill(cache, loading);
  cache.settle_delay = 1000;
  Scheduled scheduled(*model_, &cache, 64);
  const auto waits = scheduled.add(loading);
  const auto computes = scheduled.add(request(50, 20, 9));
  for (int i = 0; i < 60 && !computes->result; ++i) scheduled.engine().turn();
  ASSERT_TRUE(computes->result);
  EXPECT_FALSE(waits->result);
  EXPECT_EQ(scheduled.engine().metrics().loading, 1U);
  scheduled.run();
  EXPECT_EQ(waits->tokens(), alone(loading));
}

}  // namespace
}  // namespace kvtier::engine::test
