#include <gtest/gtest.h>

#include "engine_adapter/reference/scheduler/limits.h"
#include "tests/engine/scheduler/scheduled.h"

namespace kvtier::engine::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kPrompt = 100;
constexpr std::size_t kBlocks = 6;  // whole ones

class OffersTest : public ScheduledTest {
 protected:
  static Request request() { return ScheduledTest::request(kPrompt, 1); }
  // Until nothing is owed to the cache.
  static void settle(Scheduled& scheduled) {
    const auto give_up = Clock::now() + 120s;
    while (scheduled.engine().offer_due() || !scheduled.engine().idle()) {
      ASSERT_LT(Clock::now(), give_up);
      scheduled.engine().turn();
    }
  }

  FakeCache cache_{model_->ns(kScheduledFormat)};
};

TEST_F(OffersTest, BlocksThatFoundNoSlotAreOfferedAgainByThemselves) {
  Scheduled scheduled(*model_, &cache_, 64);
  cache_.drops_writes = true;
  scheduled.add(request());
  scheduled.run();
  EXPECT_EQ(cache_.records.size(), 0U);
  cache_.drops_writes = false;
  settle(scheduled);
  EXPECT_EQ(cache_.records.size(), kBlocks);
  EXPECT_EQ(scheduled.engine().metrics().blocks_offered_again, kBlocks);
  EXPECT_EQ(cache_.write_backs_open, 0U);
  EXPECT_EQ(scheduled.engine().metrics().pages_used, 0U);
}

TEST_F(OffersTest, BlocksOfTheEnginesOwnThatTheCacheHasLostGoBackThereOnceTheyAreUsed) {
  Scheduled scheduled(*model_, &cache_, 64);
  scheduled.add(request());
  scheduled.run();
  settle(scheduled);
  EXPECT_EQ(cache_.records.size(), kBlocks);
  cache_.records.clear();
  const auto again = scheduled.add(request());
  scheduled.run();
  EXPECT_EQ(again->result->usage.cached_local, kBlocks * 16);
  settle(scheduled);
  EXPECT_EQ(cache_.records.size(), kBlocks);
}

TEST_F(OffersTest, WhatTheCacheNeverTakesIsOfferedSoOftenAndNoMore) {
  Scheduled scheduled(*model_, &cache_, 64);
  cache_.drops_writes = true;
  scheduled.add(request());
  scheduled.run();
  settle(scheduled);
  EXPECT_EQ(cache_.writes.size(), kBlocks);
  for (const auto& [key, times] : cache_.writes) EXPECT_EQ(times, kOffersMax);
}

TEST_F(OffersTest, WhatIsOwedKeepsNoPageFromWhoeverNeedsIt) {
  Scheduled scheduled(*model_, &cache_, 8);
  cache_.drops_writes = true;
  scheduled.add(request());
  scheduled.run();
  EXPECT_TRUE(scheduled.engine().offer_due());
  Request other = request();
  other.prompt = random_tokens(kPrompt, model_->config.vocab_size, 4);
  const auto collected = scheduled.add(other);
  scheduled.run();
  EXPECT_EQ(collected->tokens(), Scheduled::alone(*model_, other));
  EXPECT_EQ(scheduled.engine().metrics().preemptions, 0U);
  cache_.drops_writes = false;
  settle(scheduled);
  EXPECT_GE(cache_.records.size(), kBlocks);
}

TEST_F(OffersTest, AGeneratorSettlesWhatWasDroppedAndKeepsNothingForItsNextRequest) {
  TestEngine engine(*model_, kScheduledFormat, 64, 64);
  Generator generator(engine.llama, *engine.pool, id_of(engine.ns), &cache_);
  const GenerateRequest asked{.prompt = request().prompt, .tokens_max = 1};
  cache_.drops_writes = true;
  generator.generate(asked).value();
  EXPECT_EQ(generator.generate(asked).value().reused_tokens, 0U);
  cache_.drops_writes = false;
  generator.settle(Clock::now() + 120s);
  EXPECT_EQ(cache_.records.size(), kBlocks);
  EXPECT_EQ(engine.pool->pages_free(), engine.pool->pages());
}

}  // namespace
}  // namespace kvtier::engine::test
