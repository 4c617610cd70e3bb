// Log probabilities of a prompt's own tokens, and where an answer ends.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "engine_adapter/reference/model/score.h"
#include "tests/engine/scheduler/scheduled.h"

namespace kvtier::engine::test {
namespace {

class PromptLogprobs : public ScheduledTest {
 protected:
  static Request request(std::size_t prompt, std::uint32_t tokens_max, std::uint64_t seed = 3) {
    Request made = ScheduledTest::request(prompt, tokens_max, seed);
    made.logprobs = made.prompt_logprobs = true;
    made.top_logprobs = 2;
    return made;
  }
  // Of the tokens but the first, from their logits.
  static std::vector<double> expected(const std::vector<Token>& tokens) {
    const std::size_t vocab = model_->config.vocab_size;
    const auto rows = static_cast<std::uint32_t>(tokens.size());
    const auto logits = logits_of(*model_, kScheduledFormat, tokens, 64, rows);
    std::vector<double> found;
    for (std::size_t row = 0; row + 1 < tokens.size(); ++row) {
      double total = 0;
      for (std::size_t i = 0; i < vocab; ++i) total += std::exp(double{logits[row * vocab + i]});
      found.push_back(logits[row * vocab + tokens[row + 1]] - std::log(total));
    }
    return found;
  }
  static void expect_told(const Collected& collected, const Request& asked) {
    const auto values = expected(asked.prompt);
    ASSERT_EQ(collected.prompt_told.size(), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(collected.prompt_told[i].token, asked.prompt[i + 1]);
      EXPECT_NEAR(collected.prompt_told[i].logprob, values[i], 1e-5) << i;
      ASSERT_EQ(collected.prompt_told[i].top.size(), asked.top_logprobs);
    }
  }
};

TEST_F(PromptLogprobs, AreThoseOfTheScoreForAnyChunk) {
  const Request asked = request(100, 1);
  TestEngine engine(*model_, kScheduledFormat, 33);
  const auto tokenizer = Tokenizer::parse(as_read(tokenizer_json({})), "tokenizer.json");
  const auto scored = score(engine.llama, *engine.pool, *tokenizer, asked.prompt, 100);
  for (const std::uint32_t step_tokens : {1U, 7U, 16U, 32U}) {
    Scheduled scheduled(*model_, nullptr, 64, {.step_tokens = step_tokens});
    const auto collected = scheduled.add(asked);
    scheduled.run();
    expect_told(*collected, asked);
    double bits = 0;
    for (const ChosenToken& told : collected->prompt_told) bits -= told.logprob / std::log(2.0);
    EXPECT_NEAR(bits, scored->bits, 1e-3);
    EXPECT_EQ(collected->tokens(), Scheduled::alone(*model_, asked));
  }
}

// What was not computed has no logits.
TEST_F(PromptLogprobs, ComputeTheWholePromptWhateverIsCached) {
  FakeCache cache(model_->ns(kScheduledFormat));
  const Request asked = request(100, 4);
  Request plain = asked;
  plain.logprobs = plain.prompt_logprobs = false;
  plain.top_logprobs = 0;
  {
    Scheduled filling(*model_, &cache, 64);
    filling.add(plain);
    filling.run();
  }
  Scheduled scheduled(*model_, &cache, 64);
  const auto first = scheduled.add(asked);
  scheduled.run();
  const auto again = scheduled.add(asked);
  const auto beside = scheduled.add(plain);
  scheduled.run();
  for (const auto& each : {first, again}) {
    expect_told(*each, asked);
    EXPECT_EQ(each->result->usage.cached(), 0U);
    EXPECT_EQ(each->tokens(), beside->tokens());
  }
  EXPECT_EQ(beside->result->usage.cached(), 96U) << "what was computed is there for others";
}

TEST_F(PromptLogprobs, ComeOnceForSamplesAndBeamsAndWithoutTokens) {
  Request samples = request(40, 3);
  samples.samples = 3;
  samples.sampling = {.temperature = 0.9, .seed = 5};
  Request beams = request(40, 3);
  beams.samples = 2;
  beams.beam.width = 3;
  for (Request asked : {samples, beams}) {
    for (const std::uint32_t tokens_max : {3U, 0U}) {
      asked.tokens_max = tokens_max;
      Scheduled scheduled(*model_, nullptr, 64);
      const auto collected = scheduled.add(asked);
      scheduled.run();
      expect_told(*collected, asked);
      ASSERT_EQ(collected->result->answers.size(), asked.samples);
      for (const Answer& answer : collected->result->answers) {
        EXPECT_LE(answer.tokens.size(), tokens_max);
        EXPECT_TRUE(tokens_max > 0 || answer.finish == FinishReason::tokens_max);
      }
    }
  }
  samples.tokens_max = 3;
  Scheduled scheduled(*model_, nullptr, 64);
  const auto collected = scheduled.add(samples);
  scheduled.run();
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(collected->tokens(i), Scheduled::alone(*model_, samples, i));
  }
}

TEST_F(PromptLogprobs, AreNotAskedOfAPromptThatIsOneToken) {
  const Request asked = request(1, 2);
  Scheduled scheduled(*model_, nullptr, 8);
  const auto collected = scheduled.add(asked);
  scheduled.run();
  EXPECT_TRUE(collected->prompt_told.empty());
  EXPECT_EQ(collected->tokens().size(), 2U);
}

// One that gives up its pages in the middle of its prompt goes on where it was.
TEST_F(PromptLogprobs, OutliveParking) {
  for (const bool cached : {false, true}) {
    FakeCache cache(model_->ns(kScheduledFormat));
    Scheduled scheduled(*model_, cached ? &cache : nullptr, 12, {.step_tokens = 16});
    const Request asked = request(100, 4);
    const auto collected = scheduled.add(asked);
    for (int i = 0; i < 3; ++i) scheduled.engine().turn();
    Request urgent = request(90, 60, 8);
    urgent.priority = 1;
    const auto first = scheduled.add(urgent);
    scheduled.run();
    expect_told(*collected, asked);
    expect_told(*first, urgent);
    EXPECT_EQ(collected->tokens(), Scheduled::alone(*model_, asked));
  }
}

class ContextsEnd : public testing::Test {
 protected:
  static constexpr std::uint32_t kPositions = 64;
  void SetUp() override {
    model_ = TestModel::make_small();
    model_->config.positions_max = kPositions;
  }
  Request request(std::size_t prompt, std::uint32_t tokens_max) const {
    Request made;
    made.prompt = random_tokens(prompt, model_->config.vocab_size, 3);
    made.tokens_max = tokens_max;
    made.ignore_end = true;
    return made;
  }
  std::unique_ptr<TestModel> model_;
};

TEST_F(ContextsEnd, PromptAndAnswerFillItAndNoTokenMore) {
  Request plain = request(kPositions - 2, 100);
  Request samples = plain;
  samples.samples = 3;
  samples.sampling = {.temperature = 1, .seed = 1};
  Request beams = plain;
  beams.samples = beams.beam.width = 2;
  Request told = plain;
  told.logprobs = told.prompt_logprobs = true;
  for (const Request& asked : {plain, samples, beams, told}) {
    for (const std::size_t left : {1U, 2U, 30U}) {
      Request each = asked;
      each.prompt = random_tokens(kPositions - left, model_->config.vocab_size, 3);
      Scheduled scheduled(*model_, nullptr, 64);
      const auto collected = scheduled.add(each);
      scheduled.run();
      for (std::uint32_t i = 0; i < each.samples; ++i) {
        EXPECT_EQ(collected->tokens(i).size(), left);
        EXPECT_EQ(collected->result->answers[i].finish, FinishReason::context_full);
      }
    }
  }
  Scheduled scheduled(*model_, nullptr, 64);
  const auto exact = scheduled.add(request(kPositions - 2, 2));
  scheduled.run();
  EXPECT_EQ(exact->result->answers[0].finish, FinishReason::tokens_max);
}

TEST_F(ContextsEnd, APromptThatFillsItHasNoAnswer) {
  TestEngine engine(*model_, kScheduledFormat, 32);
  const auto check = [&](const Request& asked) {
    return check_request(asked, engine.llama, *engine.pool, {}).has_value();
  };
  EXPECT_TRUE(check(request(kPositions - 1, 1)));
  EXPECT_FALSE(check(request(kPositions, 1)));
  EXPECT_TRUE(check(request(kPositions, 0)));
  EXPECT_FALSE(check(request(kPositions + 1, 0)));
  Scheduled scheduled(*model_, nullptr, 64);
  const auto computed = scheduled.add(request(kPositions, 0));
  scheduled.run();
  EXPECT_TRUE(computed->tokens().empty());
  EXPECT_EQ(computed->result->answers[0].finish, FinishReason::tokens_max);
}

}  // namespace
}  // namespace kvtier::engine::test
