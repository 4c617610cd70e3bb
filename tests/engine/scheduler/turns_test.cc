// Many requests at once: the answers of each alone, and a fair turn for everybody.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/scheduler/scheduled.h"

namespace kvtier::engine::test {
namespace {

class TurnsTest : public ScheduledTest {};

TEST_F(TurnsTest, AnswersInABatchAreThoseOfEachRequestAlone) {
  for (const std::uint32_t step_tokens : {3U, 17U, 32U}) {
    Workload workload(model_->config.vocab_size, step_tokens);
    Scheduled scheduled(*model_, nullptr, 400, {.step_tokens = step_tokens});
    std::vector<std::pair<Request, std::shared_ptr<Collected>>> asked;
    for (int i = 0; i < 12; ++i) {
      Request next = workload.next();
      asked.emplace_back(next, scheduled.add(next));
    }
    scheduled.run();
    for (const auto& [each, collected] : asked) {
      EXPECT_EQ(collected->tokens(), alone(each));
      EXPECT_EQ(collected->seen[0], collected->tokens());
    }
    EXPECT_LT(scheduled.engine().metrics().steps, 1500U);
  }
}

TEST_F(TurnsTest, AClientWithManyRequestsDoesNotKeepAnotherWaiting) {
  Scheduled scheduled(*model_, nullptr, 40, {.running_max = 2});
  std::vector<std::shared_ptr<Collected>> many;
  for (std::uint64_t i = 0; i < 20; ++i) {
    Request each = request(60, 20, i);
    each.client = "many";
    many.push_back(scheduled.add(each));
  }
  scheduled.engine().turn();
  Request one = request(60, 20, 99);
  one.client = "one";
  const auto late = scheduled.add(one);
  while (!late->result) scheduled.engine().turn();
  const auto ended =
      std::ranges::count_if(many, [](const auto& c) { return c->result.has_value(); });
  EXPECT_LE(ended, 4);
  scheduled.run();
}

TEST_F(TurnsTest, ALongPromptIsNotStarvedByShortOnes) {
  Scheduled scheduled(*model_, nullptr, 200, {.step_tokens = 16});
  Request big = request(800, 2);
  big.client = "long";
  const auto waiting = scheduled.add(big);
  // Alone it takes 51 steps; the short ones ask for more than twice of what a step has.
  for (std::uint64_t i = 0; !waiting->result; ++i) {
    ASSERT_LT(i, 130U) << "more than a fair share went before it";
    Request small = request(40, 2, i);
    small.client = "short";
    scheduled.add(small);
    scheduled.engine().turn();
  }
  EXPECT_GT(scheduled.engine().metrics().finished, 10U) << "nor are the short ones";
}

TEST_F(TurnsTest, ManyMoreAnswersThanAStepHasRowsTakeTurns) {
  Scheduled scheduled(*model_, nullptr, 100, {.step_tokens = 4});
  std::vector<std::pair<Request, std::shared_ptr<Collected>>> asked;
  for (std::uint64_t i = 0; i < 10; ++i) {
    asked.emplace_back(request(5, 20, i), nullptr);
    asked.back().second = scheduled.add(asked.back().first);
  }
  scheduled.run();
  for (const auto& [each, collected] : asked) EXPECT_EQ(collected->tokens(), alone(each));
}

// Tokens of an answer under way that come until the first of a prompt of 200 tokens does.
std::size_t tokens_meanwhile(Scheduled& scheduled, const Request& answering,
                             const Request& prompt) {
  const auto answer = scheduled.add(answering);
  while (answer->seen[0].size() < 2) scheduled.engine().turn();
  const auto asked = scheduled.add(prompt);
  const std::size_t before = answer->seen[0].size();
  while (asked->seen[0].empty()) scheduled.engine().turn();
  EXPECT_FALSE(answer->result) << "it ended before the prompt did";
  const std::size_t meanwhile = answer->seen[0].size() - before;
  scheduled.run();
  return meanwhile;
}

TEST_F(TurnsTest, PromptsTakeFewerRowsOfAStepThatAnswersWaitFor) {
  const Request answering = request(20, 60, 1), prompt = request(200, 2, 2);
  Scheduled bounded(*model_, nullptr, 100, {.step_tokens = 32, .tokens_beside_answers = 8});
  EXPECT_GE(tokens_meanwhile(bounded, answering, prompt), 200U / 7)
      << "the answer has a row of them";
  Scheduled unbounded(*model_, nullptr, 100, {.step_tokens = 32, .tokens_beside_answers = 0});
  EXPECT_LE(tokens_meanwhile(unbounded, answering, prompt), 200U / 31 + 2);

  // Alone a prompt has whole steps.
  const std::uint64_t before = bounded.engine().metrics().steps;
  const auto alone_now = bounded.add(request(160, 1, 3));
  while (alone_now->seen[0].empty()) bounded.engine().turn();
  EXPECT_LE(bounded.engine().metrics().steps - before, 160U / 32 + 1);
  bounded.run();
}

// Everything at random, with a cache that delays, drops and fails.
TEST_F(TurnsTest, NoAnswerChangesOverRandomWalksWithAFaultyCache) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    FakeCache cache = make_cache();
    Workload workload(model_->config.vocab_size, seed);
    const auto pages = static_cast<std::uint32_t>(workload.draw(14, 40));
    const LoadPolicy policies[] = {LoadPolicy::automatic, LoadPolicy::always_load,
                                   LoadPolicy::always_compute, LoadPolicy::always_both};
    Scheduled scheduled(*model_, &cache, pages,
                        {.step_tokens = static_cast<std::uint32_t>(workload.draw(4, 32)),
                         .running_max = static_cast<std::uint32_t>(workload.draw(1, 8)),
                         .keep_pages = seed % 2 == 0,
                         .load_policy = policies[seed % 4]});
    struct Asked {
      Request request;
      RequestId id;
      std::shared_ptr<Collected> collected;
      bool cancelled = false;
    };
    std::vector<Asked> asked;
    for (int turn = 0; turn < 500; ++turn) {
      const auto chance = workload.draw(0, 99);
      if (chance < 8 && asked.size() < 30) {
        Request next = workload.next();
        const auto width = workload.draw(0, 9);
        if (width == 0) next.samples = 2;
        asked.push_back({next, RequestId(0), scheduled.add(next)});
        asked.back().id = scheduled.last();
      } else if (chance == 8 && !asked.empty()) {
        Asked& one = asked[workload.draw(0, asked.size() - 1)];
        one.cancelled = true;
        scheduled.engine().cancel(one.id);
      } else if (chance < 14) {
        cache.drop(workload.draw(0, 20));
      } else if (chance == 14) {
        cache.tier = kAllTiers[workload.draw(0, 2)];
        cache.settle_delay = static_cast<std::uint32_t>(workload.draw(0, 6));
        cache.load_delay = static_cast<std::uint32_t>(workload.draw(0, 6));
        cache.write_delay = static_cast<std::uint32_t>(workload.draw(0, 6));
      } else if (chance == 15) {
        cache.drops_writes = workload.draw(0, 3) == 0;
        cache.lease_error.reset();
        if (workload.draw(0, 4) == 0) cache.lease_error = Errc::deadline;
        cache.loaded_max = workload.draw(0, 3) == 0 ? 2 : ~0U;
        cache.ready_max = workload.draw(0, 5) == 0 ? 1 : ~0U;
        cache.held.reset();
        if (workload.draw(0, 4) == 0) cache.held = 1;
      }
      scheduled.engine().turn();
    }
    scheduled.run();
    std::size_t compared = 0;
    for (const Asked& each : asked) {
      ASSERT_TRUE(each.collected->result);
      if (each.cancelled) continue;
      for (std::uint32_t sample = 0; sample < each.request.samples; ++sample) {
        EXPECT_EQ(each.collected->tokens(sample), alone(each.request, sample)) << "seed " << seed;
        ++compared;
      }
    }
    EXPECT_GT(compared, 10U);
    EXPECT_EQ(scheduled.engine().metrics().pages_used, 0U) << "seed " << seed;
    for (const auto& [key, holds] : cache.holds) EXPECT_EQ(holds, 0) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvtier::engine::test
