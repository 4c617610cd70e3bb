// Contexts of sinks and a window, and models with windows of their own: pages that go back, and
// answers that do not depend on it.
#include <gtest/gtest.h>

#include "tests/engine/scheduler/scheduled.h"

namespace kvtier::engine::test {
namespace {

constexpr std::uint32_t kSinks = 4, kWindow = 48, kChunk = 32;

enum class Windows : std::uint8_t { with_sinks, of_the_model };

class EndlessTest : public testing::TestWithParam<Windows> {
 protected:
  EndlessTest() : model_(TestModel::make_small()) {
    ModelConfig& config = model_->config;
    if (GetParam() == Windows::with_sinks) {
      EXPECT_TRUE(config.attend_within(kSinks, kWindow, 4000));
    } else {
      config.positions_max = 4000;
      config.windows.assign(config.layers, kWindow / 3);
      config.windows.back() = kWindow;
    }
    kept_ = (model_->config.tokens_kept(kChunk) + kBlockTokens - 1) / kBlockTokens;
  }

  Request request(std::size_t prompt, std::uint32_t tokens_max, std::uint64_t seed = 3) const {
    Request made;
    made.prompt = random_tokens(prompt, model_->config.vocab_size, seed);
    made.tokens_max = tokens_max;
    made.ignore_end = true;
    return made;
  }

  std::unique_ptr<TestModel> model_;
  std::uint32_t kept_ = 0;  // pages
};

INSTANTIATE_TEST_SUITE_P(Windows, EndlessTest,
                         testing::Values(Windows::with_sinks, Windows::of_the_model),
                         [](const auto& test) {
                           return test.param == Windows::with_sinks ? "sinks" : "own_windows";
                         });

TEST_P(EndlessTest, AnAnswerBeyondWhatTheModelWasTrainedForKeepsFewPages) {
  const Request longer = request(40, 1500);  // 1024 positions were trained
  Scheduled scheduled(*model_, nullptr, kept_, {.keep_pages = false});
  const auto collected = scheduled.add(longer);
  std::uint32_t most = 0;
  while (!collected->result) {
    scheduled.engine().turn();
    most = std::max(most, scheduled.engine().metrics().pages_used);
  }
  EXPECT_EQ(collected->tokens().size(), 1500U);
  EXPECT_EQ(collected->tokens(), Scheduled::alone(*model_, longer));
  EXPECT_LE(most, (kSinks + kWindow) / kBlockTokens + 3U) << "one row a step";
  EXPECT_EQ(scheduled.engine().metrics().pages_used, 0U);
}

TEST_P(EndlessTest, APromptThatIsLongerThanThePoolIsComputedAndOneTooManyIsRefused) {
  const Request longer = request(900, 20);
  Scheduled scheduled(*model_, nullptr, kept_);
  const auto collected = scheduled.add(longer);
  const auto beside = scheduled.add(request(200, 60, 4));
  scheduled.run();
  EXPECT_EQ(collected->tokens(), Scheduled::alone(*model_, longer));
  EXPECT_EQ(beside->tokens(), Scheduled::alone(*model_, request(200, 60, 4)));
  TestEngine small(*model_, kScheduledFormat, kChunk, kept_ - 1);
  EXPECT_EQ(check_request(longer, small.llama, *small.pool, {}).error().code, Errc::no_space);
  EXPECT_TRUE(check_request(request(30, 20), small.llama, *small.pool, {}));
}

TEST_P(EndlessTest, AHitEqualsAMiss) {
  for (const std::uint32_t pages : {kept_, 2 * kept_, 200U}) {
    FakeCache cache(model_->ns(kScheduledFormat));
    cache.settle_delay = cache.load_delay = 1;
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      Request first = request(100 + 16 * seed, 70, seed);
      if (seed == 2) first.sampling = {.temperature = 0.7, .seed = 9};
      Scheduled one(*model_, &cache, pages);
      const auto answered = one.add(first);
      one.run();
      EXPECT_EQ(answered->tokens(), Scheduled::alone(*model_, first));
      // The conversation goes on, in an engine that has nothing yet.
      Request next = first;
      const auto tokens = answered->tokens();
      next.prompt.insert(next.prompt.end(), tokens.begin(), tokens.end());
      next.prompt.push_back(5);
      Scheduled other(*model_, &cache, pages);
      const auto again = other.add(next);
      other.run();
      EXPECT_EQ(again->tokens(), Scheduled::alone(*model_, next)) << pages << " " << seed;
      EXPECT_GT(again->result->usage.cached(), 0U);
      EXPECT_EQ(other.engine().metrics().pages_used, 0U);
    }
  }
}

TEST_P(EndlessTest, SamplesProposalsAndParkingChangeNothing) {
  FakeCache cache(model_->ns(kScheduledFormat));
  cache.write_delay = cache.settle_delay = cache.load_delay = 2;
  Scheduled scheduled(*model_, &cache, 2 * kept_, {.speculation = {.proposals_max = 8}});
  std::vector<std::pair<Request, std::shared_ptr<Collected>>> asked;
  for (std::uint64_t i = 0; i < 9; ++i) {
    Request each = request(5 + 3 * i, 200, i);
    if (i % 3 == 1) each.sampling = {.temperature = 0.4, .seed = i};
    if (i % 3 == 2) each.samples = 2;
    asked.emplace_back(each, scheduled.add(each));
  }
  scheduled.run();
  for (const auto& [each, collected] : asked) {
    for (std::uint32_t sample = 0; sample < each.samples; ++sample) {
      EXPECT_EQ(collected->tokens(sample), Scheduled::alone(*model_, each, sample));
    }
  }
  EXPECT_GT(scheduled.engine().metrics().preemptions, 0U);
  EXPECT_GT(scheduled.engine().metrics().tokens_accepted, 0U);
  EXPECT_EQ(scheduled.engine().metrics().pages_used, 0U);
}

TEST(EndlessWindows, ALayerThatSeesAllKeepsAllPages) {
  const auto model = TestModel::make_small();
  ModelConfig& config = model->config;
  config.windows.assign(config.layers, kWindow);
  EXPECT_EQ(config.unseen_blocks(400).end, (400 + 1 - kWindow) / kBlockTokens);
  config.windows.front() = 0;
  EXPECT_EQ(config.unseen_blocks(400).end, 0U);
  EXPECT_EQ(config.tokens_kept(kChunk), config.positions_max);
}

}  // namespace
}  // namespace kvtier::engine::test
