// Requests whose prompt another engine computes: its blocks come to the cache by and by.
#include "tests/engine/scheduler/scheduled.h"

namespace kvtier::engine::test {
namespace {

using std::chrono::milliseconds;

class HandoffTest : public ScheduledTest {
 protected:
  static Request awaiting(std::size_t prompt, std::uint64_t seed = 3) {
    Request made = request(prompt, 6, seed);
    made.awaited_tokens = static_cast<std::uint32_t>(prompt);
    return made;
  }
  // The other engine has computed so much of it.
  static void store(FakeCache& cache, const Request& of, std::size_t tokens) {
    Request part = of;
    part.awaited_tokens = 0;
    part.prompt.resize(tokens);
    fill(cache, part);
  }
  static void turn_for(Scheduled& scheduled, milliseconds time) {
    const auto until = Clock::now() + time;
    while (Clock::now() < until) scheduled.engine().turn();
  }
  static std::uint32_t cached(const Collected& collected) {
    return collected.result->usage.cached_tiers[index_of(Tier::host)];
  }
};

TEST_F(HandoffTest, blocks_are_taken_as_they_come_and_none_is_computed) {
  FakeCache cache = make_cache();
  Scheduled scheduled(*model_, &cache, 64);
  const Request asked = awaiting(100);
  const auto answer = scheduled.add(asked);
  turn_for(scheduled, milliseconds(10));
  EXPECT_EQ(scheduled.engine().metrics().loads, 0U);
  std::uint64_t loads = 0;
  for (const std::size_t tokens : {40U, 72U}) {
    store(cache, asked, tokens);
    while (scheduled.engine().metrics().loads == loads) scheduled.engine().turn();
    turn_for(scheduled, milliseconds(10));
    EXPECT_EQ(scheduled.engine().metrics().loads, ++loads);
    EXPECT_EQ(scheduled.engine().metrics().tokens_computed, 0U);
  }
  store(cache, asked, 100);
  scheduled.run();
  EXPECT_EQ(answer->tokens(), alone(asked));
  const std::uint32_t block = cache.layout().block_tokens;
  EXPECT_EQ(cached(*answer), 99 / block * block);
  EXPECT_EQ(answer->result->plan.reason, LoadReason::awaited);
  EXPECT_EQ(scheduled.engine().metrics().handoffs, 1U);
  EXPECT_EQ(scheduled.engine().metrics().handoffs_given_up, 0U);
}

TEST_F(HandoffTest, what_does_not_come_in_time_is_computed) {
  for (const std::size_t stored : {0U, 48U}) {
    FakeCache cache = make_cache();
    Scheduled scheduled(*model_, &cache, 64);
    Request asked = awaiting(100);
    asked.handoff_deadline = milliseconds(20);
    if (stored > 0) store(cache, asked, stored);
    const auto begun = Clock::now();
    const auto answer = scheduled.add(asked);
    scheduled.run();
    EXPECT_GE(Clock::now() - begun, milliseconds(20));
    EXPECT_EQ(answer->tokens(), alone(asked));
    EXPECT_EQ(cached(*answer) > 0, stored > 0);
    EXPECT_EQ(scheduled.engine().metrics().handoffs_given_up, 1U);
  }
}

TEST_F(HandoffTest, no_more_is_awaited_than_was_promised) {
  FakeCache cache = make_cache();
  Scheduled scheduled(*model_, &cache, 64);
  Request asked = awaiting(100);
  asked.awaited_tokens = 48;
  asked.handoff_deadline = std::chrono::hours(1);
  store(cache, asked, 49);
  const auto answer = scheduled.add(asked);
  scheduled.run();
  EXPECT_EQ(answer->tokens(), alone(asked));
  EXPECT_EQ(cached(*answer), 48U);
  EXPECT_EQ(scheduled.engine().metrics().handoffs_given_up, 0U);
}

TEST_F(HandoffTest, others_go_on_while_one_waits) {
  FakeCache cache = make_cache();
  Scheduled scheduled(*model_, &cache, 64);
  const Request asked = awaiting(100);
  const auto waiting = scheduled.add(asked);
  const Request other = request(40, 30, 8);
  const auto answering = scheduled.add(other);
  while (!answering->result) scheduled.engine().turn();
  EXPECT_EQ(answering->tokens(), alone(other));
  EXPECT_FALSE(waiting->result.has_value());
  store(cache, asked, 100);
  scheduled.run();
  EXPECT_EQ(waiting->tokens(), alone(asked));
}

TEST_F(HandoffTest, a_block_that_does_not_hold_is_computed_and_those_behind_it_are_awaited_on) {
  FakeCache cache = make_cache();
  cache.loaded_max = 1;
  Scheduled scheduled(*model_, &cache, 64);
  const Request asked = awaiting(100);
  store(cache, asked, 100);
  const auto answer = scheduled.add(asked);
  scheduled.run();
  EXPECT_EQ(answer->tokens(), alone(asked));
}

TEST_F(HandoffTest, a_cancelled_one_gives_its_pages_back) {
  FakeCache cache = make_cache();
  Scheduled scheduled(*model_, &cache, 64, {.keep_pages = false});
  const Request asked = awaiting(100);
  const auto answer = scheduled.add(asked);
  store(cache, asked, 60);
  while (scheduled.engine().metrics().loads == 0) scheduled.engine().turn();
  scheduled.engine().cancel(scheduled.last());
  scheduled.run();
  scheduled.engine().turn();
  EXPECT_TRUE(answer->result.has_value());
  EXPECT_EQ(scheduled.pool().pages_free(), 64U);
}

TEST_F(HandoffTest, two_that_await_the_same_prompt_load_each_block_once) {
  FakeCache cache = make_cache();
  Scheduled scheduled(*model_, &cache, 64);
  const Request asked = awaiting(100);
  const auto first = scheduled.add(asked);
  const auto second = scheduled.add(asked);
  turn_for(scheduled, milliseconds(1));
  store(cache, asked, 100);
  scheduled.run();
  EXPECT_EQ(first->tokens(), alone(asked));
  EXPECT_EQ(second->tokens(), alone(asked));
  for (const auto& [key, times] : cache.loads) EXPECT_EQ(times, 1);
}

TEST_F(HandoffTest, many_in_a_pool_that_is_too_small_for_all_end_as_alone) {
  FakeCache cache = make_cache();
  Scheduled scheduled(*model_, &cache, 14);
  std::vector<Request> all;
  std::vector<std::shared_ptr<Collected>> answers;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    all.push_back(awaiting(90, seed));
    all.back().tokens_max = 40;
    all.back().handoff_deadline = milliseconds(30);
    answers.push_back(scheduled.add(all.back()));
    if (seed % 2 == 0) store(cache, all.back(), 90);
  }
  turn_for(scheduled, milliseconds(10));
  for (const Request& asked : all) store(cache, asked, 50);
  scheduled.run();
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(answers[i]->tokens(), alone(all[i]));
}

}  // namespace
}  // namespace kvtier::engine::test
