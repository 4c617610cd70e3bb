// Requests that give up their pages, and come back.
#include <gtest/gtest.h>

#include "engine_adapter/reference/scheduler/pages/park_report.h"
#include "tests/engine/scheduler/scheduled.h"

namespace kvtier::engine::test {
namespace {

class ParkingTest : public ScheduledTest {};

TEST_F(ParkingTest, WithAPoolTooSmallRequestsAreParkedAndNothingIsComputedTwice) {
  FakeCache cache = make_cache();
  cache.write_delay = 2;
  cache.settle_delay = 2;
  cache.load_delay = 2;
  Scheduled scheduled(*model_, &cache, 14);
  std::vector<std::pair<Request, std::shared_ptr<Collected>>> asked;
  for (std::uint64_t i = 0; i < 4; ++i) {
    Request each = request(50 + 7 * i, 90, i);
    if (i % 2 == 1) each.sampling = {.temperature = 0.8, .seed = i};
    asked.emplace_back(each, scheduled.add(each));
  }
  scheduled.run();
  const SchedulerMetrics metrics = scheduled.engine().metrics();
  EXPECT_GT(metrics.preemptions, 0U);
  EXPECT_EQ(metrics.resumptions, metrics.preemptions);
  EXPECT_EQ(metrics.parked_for[index_of(ParkedFor::pages)], metrics.preemptions);
  EXPECT_EQ(metrics.parked_for[index_of(ParkedFor::memory)], 0U);
  EXPECT_EQ(metrics.tokens_recomputed, 0U);
  std::uint64_t fed = 0;
  for (const auto& [each, collected] : asked) {
    EXPECT_EQ(collected->tokens(), alone(each));
    fed += each.prompt.size() + each.tokens_max - 1;
  }
  EXPECT_EQ(metrics.tokens_computed, fed) << "each token once";
  EXPECT_EQ(metrics.pages_used, 0U);
  for (const auto& [key, holds] : cache.holds) EXPECT_EQ(holds, 0);
}

TEST_F(ParkingTest, PlacesOfPagesThatHoldNoTokenAreCounted) {
  Scheduled scheduled(*model_, nullptr, 14);
  scheduled.add(request(20, 4, 1));
  while (scheduled.engine().metrics().pages_used == 0) scheduled.engine().turn();
  // The prompt's pages are whole but for the last, which has 4 of 16 tokens.
  const SchedulerMetrics metrics = scheduled.engine().metrics();
  const std::uint64_t places = 16ULL * metrics.pages_used;
  EXPECT_GT(metrics.token_places_unused, 0U);
  EXPECT_LE(metrics.token_places_unused, places);
  EXPECT_LE(places - metrics.token_places_unused, 24U) << "no more than there are tokens";
  scheduled.run();
  EXPECT_EQ(scheduled.engine().metrics().token_places_unused, 0U);
}

TEST(ParkReportTest, IsToldAtOnceAndThenAtMostEveryTenSeconds) {
  std::vector<std::string> told;
  ParkReport report([&](const std::string& line) { told.push_back(line); });
  SchedulerMetrics metrics;
  metrics.pages = 64;
  auto now = Clock::now();
  report.look(metrics, now);
  EXPECT_TRUE(told.empty());
  metrics.parked_for[index_of(ParkedFor::memory)] = 5;  // another reason, which is told elsewhere
  report.look(metrics, now);
  EXPECT_TRUE(told.empty());
  std::uint64_t& parked = metrics.parked_for[index_of(ParkedFor::pages)];
  parked = 2;
  report.look(metrics, now);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_TRUE(told[0].starts_with("2 requests gave up their pages"));
  EXPECT_NE(told[0].find("all 64 are in use"), std::string::npos);
  EXPECT_NE(told[0].find("--pool-tokens"), std::string::npos);
  parked = 7;
  report.look(metrics, now + ParkReport::kEvery - std::chrono::milliseconds(1));
  EXPECT_EQ(told.size(), 1U);
  report.look(metrics, now + ParkReport::kEvery);
  ASSERT_EQ(told.size(), 2U);
  EXPECT_TRUE(told[1].starts_with("5 requests"));
  report.look(metrics, now + 10 * ParkReport::kEvery);
  EXPECT_EQ(told.size(), 2U);
}

TEST_F(ParkingTest, WhatTheCacheDidNotKeepOfAParkedRequestIsComputedAgainAndCounted) {
  FakeCache cache = make_cache();
  cache.drops_writes = true;
  Scheduled scheduled(*model_, &cache, 14, {.keep_pages = false});
  std::vector<std::pair<Request, std::shared_ptr<Collected>>> asked;
  for (std::uint64_t i = 0; i < 3; ++i) {
    asked.emplace_back(request(60, 90, i), nullptr);
    asked.back().second = scheduled.add(asked.back().first);
  }
  scheduled.run();
  EXPECT_GT(scheduled.engine().metrics().preemptions, 0U);
  EXPECT_GT(scheduled.engine().metrics().tokens_recomputed, 0U);
  std::uint32_t counted = 0;
  for (const auto& [each, collected] : asked) {
    EXPECT_EQ(collected->tokens(), alone(each));
    counted += collected->result->usage.recomputed_tokens;
  }
  EXPECT_EQ(counted, scheduled.engine().metrics().tokens_recomputed);
}

// The pages that hold what is being loaded are those that the first in line needs.
TEST_F(ParkingTest, TheFirstGetsOnWhileLoadedBlocksHoldAllPages) {
  FakeCache cache = make_cache();
  const Request a = request(70, 4, 1), b = request(70, 4, 2);
  fill(cache, a);
  fill(cache, b);
  Scheduled scheduled(*model_, &cache, 16);
  const Request first = request(30, 200, 5);
  const auto growing = scheduled.add(first);
  scheduled.engine().turn();
  cache.settle_delay = 100'000;  // longer than the test looks
  const auto loading_a = scheduled.add(a);
  const auto loading_b = scheduled.add(b);
  for (int i = 0; i < 1000 && !growing->result; ++i) scheduled.engine().turn();
  ASSERT_TRUE(growing->result) << "deadlock";
  EXPECT_EQ(growing->tokens(), alone(first));
  EXPECT_GT(scheduled.engine().metrics().preemptions, 0U);
  cache.settle_delay = 0;
  scheduled.engine().cancel_all();
  EXPECT_TRUE(loading_a->result && loading_b->result);
}

TEST_F(ParkingTest, SamplesThatAreParkedComeBackWithTheSameAnswers) {
  FakeCache cache = make_cache();
  Request samples = request(40, 60);
  samples.samples = 3;
  samples.sampling = {.temperature = 1.0, .seed = 7};
  Request other = request(40, 120, 8);
  other.priority = 1;
  Scheduled scheduled(*model_, &cache, 18);
  const auto collected = scheduled.add(samples);
  scheduled.engine().turn();
  const auto first = scheduled.add(other);
  scheduled.run();
  EXPECT_GT(collected->result->usage.parked, 0U);
  for (std::uint32_t sample = 0; sample < 3; ++sample) {
    EXPECT_EQ(collected->tokens(sample), alone(samples, sample));
  }
  EXPECT_EQ(first->tokens(), alone(other));
  EXPECT_EQ(scheduled.engine().metrics().tokens_recomputed, 0U);
}

TEST_F(ParkingTest, BeamsThatAreParkedComeBackWithTheSameAnswers) {
  Request beams = request(40, 40);
  beams.beam = {.width = 3};
  beams.ignore_end = true;
  Scheduled undisturbed(*model_, nullptr, 64);
  const auto expected = undisturbed.add(beams);
  undisturbed.run();
  FakeCache cache = make_cache();
  Scheduled scheduled(*model_, &cache, 11);
  const auto collected = scheduled.add(beams);
  scheduled.engine().turn();
  Request other = request(40, 120, 8);
  other.priority = 1;
  scheduled.add(other);
  scheduled.run();
  EXPECT_GT(collected->result->usage.parked, 0U);
  EXPECT_EQ(collected->tokens(), expected->tokens());
  EXPECT_EQ(scheduled.engine().metrics().tokens_recomputed, 0U);
}

TEST_F(ParkingTest, ACancelledRequestLeavesNothingBehindWhateverItWasDoing) {
  for (int at = 0; at < 60; at += 3) {
    FakeCache cache = make_cache();
    const Request shared = request(100, 20);
    fill(cache, shared);
    cache.settle_delay = 5;
    cache.load_delay = 5;
    cache.write_delay = 3;
    Scheduled scheduled(*model_, &cache, 20, {.keep_pages = false});
    std::vector<RequestId> ids;
    std::vector<std::shared_ptr<Collected>> all;
    for (std::uint64_t i = 0; i < 3; ++i) {
      Request each = i == 0 ? shared : request(80, 60, i);
      if (i == 2) each.samples = 2;
      all.push_back(scheduled.add(each));
      ids.push_back(scheduled.last());
    }
    for (int turn = 0; turn < at; ++turn) scheduled.engine().turn();
    for (const RequestId id : ids) scheduled.engine().cancel(id);
    for (const auto& each : all) EXPECT_TRUE(each->result);
    scheduled.run();
    EXPECT_EQ(scheduled.pool().pages_free(), 20U) << at;
    for (const auto& [key, holds] : cache.holds) EXPECT_EQ(holds, 0) << at;
    EXPECT_EQ(cache.write_backs_open, 0U);
  }
}

}  // namespace
}  // namespace kvtier::engine::test
