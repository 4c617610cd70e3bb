// Memory in one piece, pages of one's own, and fixed batches: who runs at once, and the same
// answers.
#include "tests/engine/scheduler/scheduled.h"

namespace kvtier::engine::test {
namespace {

class EarlierWaysTest : public ScheduledTest {
 protected:
  // Requests of 20 tokens and answers of 3, 6, 9, ... whose first half is the same; what they
  // answered must be what each answers alone. `each_turn` is called after every turn.
  template <class EachTurn>
  static std::uint32_t most_at_once(Scheduled& scheduled, std::size_t count,
                                    const EachTurn& each_turn) {
    std::vector<std::pair<Request, std::shared_ptr<Collected>>> asked;
    for (std::size_t i = 0; i < count; ++i) {
      Request each = request(52, static_cast<std::uint32_t>(3 + 3 * i), 7);
      each.prompt.back() = static_cast<Token>(i + 1);
      each.ignore_end = true;
      asked.emplace_back(each, scheduled.add(each));
    }
    while (!scheduled.engine().idle()) {
      scheduled.engine().turn();
      each_turn(scheduled.engine().metrics());
    }
    for (const auto& [each, collected] : asked) {
      EXPECT_TRUE(collected->result);
      if (!collected->result) continue;
      EXPECT_EQ(collected->tokens(), alone(each));
    }
    return scheduled.engine().metrics().running_most;
  }
  static std::uint32_t most_at_once(Scheduled& scheduled, std::size_t count) {
    return most_at_once(scheduled, count, [](const SchedulerMetrics&) {});
  }
};

TEST_F(EarlierWaysTest, MemoryOfTheLongestContextIsForAsManyAsThePoolHolds) {
  for (const std::uint32_t reserved : {100U, 200U, 600U}) {
    Scheduled scheduled(
        *model_, nullptr, 40,
        {.keep_pages = false, .earlier = {.reserved_tokens = reserved, .apart = true}});
    const std::uint32_t pages = (reserved + 15) / 16;
    EXPECT_EQ(most_at_once(scheduled, 9), std::min(40 / pages, 9U)) << reserved;
    EXPECT_EQ(scheduled.engine().metrics().preemptions, 0U);
  }
}

TEST_F(EarlierWaysTest, ApartNobodyFindsThePagesOfAnother) {
  const Request same = request(52, 5, 7);
  for (const bool apart : {false, true}) {
    Scheduled scheduled(*model_, nullptr, 200, {.earlier = {.apart = apart}});
    for (const bool first : {true, false}) {
      const auto collected = scheduled.add(same);
      scheduled.run();
      EXPECT_EQ(collected->tokens(), alone(same));
      EXPECT_EQ(scheduled.engine().metrics().local_hits != 0, !first && !apart);
    }
  }
}

TEST_F(EarlierWaysTest, AFixedBatchEndsBeforeTheNextBegins) {
  for (const bool fixed : {false, true}) {
    Scheduled scheduled(*model_, nullptr, 200,
                        {.running_max = 3, .earlier = {.fixed_batches = fixed}});
    std::uint32_t before = 0;
    bool joined = false;  // one that was running
    most_at_once(scheduled, 9, [&](const SchedulerMetrics& metrics) {
      joined = joined || (metrics.running == 3 && before != 0 && before < 3);
      before = metrics.running;
    });
    EXPECT_EQ(scheduled.engine().metrics().running_most, 3U);
    EXPECT_EQ(joined, !fixed);
  }
}

TEST_F(EarlierWaysTest, TokensAreCountedForEachRequestThatHasThem) {
  Scheduled scheduled(*model_, nullptr, 200, {});
  std::uint64_t held = 0;
  std::uint64_t places = 0;
  most_at_once(scheduled, 6, [&](const SchedulerMetrics& metrics) {
    if (metrics.tokens_held > held) {
      held = metrics.tokens_held;
      places = std::uint64_t{metrics.pages_used} * 16;
    }
  });
  EXPECT_GT(held, 6 * 52U);
  EXPECT_GT(held, places) << "three of four blocks are shared";
}

}  // namespace
}  // namespace kvtier::engine::test
