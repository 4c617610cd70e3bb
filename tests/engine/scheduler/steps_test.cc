// What a step computes, what it is asked, and what is learnt of its time: each part by itself.
#include "engine_adapter/reference/scheduler/steps/steps.h"

#include "tests/engine/scheduler/engine_parts.h"

namespace kvtier::engine::test {
namespace {

using namespace std::chrono_literals;

class StepsTest : public ScheduledTest {};

TEST_F(StepsTest, AnswersHaveTheirRowsFirstAndPromptsTheRest) {
  EngineParts parts(*model_, 32);
  LiveRequest& answers = parts.add(request(10, 8));
  ASSERT_TRUE(parts.admission.admit());
  parts.step();
  LiveRequest& prompt = parts.add(request(100, 8));
  ASSERT_TRUE(parts.admission.admit());
  const auto inputs = parts.chooser.choose();
  ASSERT_EQ(inputs.size(), 2U);
  EXPECT_EQ(inputs[0].live, &answers);
  EXPECT_EQ(inputs[0].tokens, 1U);
  EXPECT_TRUE(inputs[0].chooses);
  EXPECT_EQ(inputs[1].live, &prompt);
  EXPECT_EQ(inputs[1].tokens, kPartsStep - 1);
  EXPECT_FALSE(inputs[1].chooses) << "its prompt goes on";
  EXPECT_GE(prompt.branches[0]->sequence->records().size(), 2U) << "the pages are there";
  parts.requests.cancel_all();
}

TEST_F(StepsTest, NothingIsChosenWhileBlocksAreOnTheirWay) {
  FakeCache cache = make_cache();
  const Request loading = request(100, 4);
  fill(cache, loading);
  cache.settle_delay = 1000;
  EngineParts parts(*model_, 32);
  parts.add(loading, &cache);
  ASSERT_TRUE(parts.admission.admit());
  parts.loads.poll();
  EXPECT_TRUE(parts.chooser.choose().empty());
  parts.requests.cancel_all();
}

TEST_F(StepsTest, AStepIsAskedOnlyWhatSomebodyWantsToKnow) {
  EngineParts parts(*model_, 32);
  Request plain = request(20, 4), told = request(20, 4);
  told.logprobs = told.prompt_logprobs = true;
  told.top_logprobs = 2;
  parts.add(plain);
  parts.add(told);
  ASSERT_TRUE(parts.admission.admit());
  auto inputs = parts.chooser.choose();
  ASSERT_EQ(inputs.size(), 2U);
  EXPECT_FALSE(RowQuestions::concern(inputs[0]));
  EXPECT_TRUE(RowQuestions::concern(inputs[1]));
  RowQuestions asked;
  asked.add(inputs[1]);
  EXPECT_EQ(inputs[1].told, inputs[1].tokens);
  ASSERT_EQ(asked.questions().size(), inputs[1].tokens);
  EXPECT_EQ(asked.questions()[0].known, told.prompt[1]);
  EXPECT_EQ(asked.questions()[0].likeliest, 2U);
  EXPECT_EQ(asked.answers().size(), asked.questions().size());
  asked.clear();
  EXPECT_TRUE(asked.questions().empty());
  parts.requests.cancel_all();
}

TEST_F(StepsTest, TheFirstTokensOfAllSamplesAreOneQuestion) {
  EngineParts parts(*model_, 32);
  Request samples = request(20, 4);
  samples.samples = 3;
  samples.sampling = {.temperature = 1, .seed = 5};
  parts.add(samples);
  ASSERT_TRUE(parts.admission.admit());
  auto inputs = parts.chooser.choose();
  ASSERT_EQ(inputs.size(), 1U);
  RowQuestions asked;
  asked.add(inputs[0]);
  ASSERT_EQ(asked.questions().size(), 1U);
  ASSERT_EQ(asked.questions()[0].choices.size(), 3U);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(asked.questions()[0].choices[i].options.seed, 5U + i);
  }
  parts.requests.cancel_all();
}

TEST_F(StepsTest, WhatASteppedRequestComputedIsSharedAndCounted) {
  EngineParts parts(*model_, 32);
  parts.add(request(32, 2));
  ASSERT_TRUE(parts.admission.admit());
  parts.step();
  EXPECT_EQ(parts.store.size(), 2U);
  EXPECT_EQ(parts.metrics.tokens_computed, 32U);
  EXPECT_EQ(parts.metrics.steps, 1U);
  EXPECT_EQ(parts.told[0]->seen[0].size(), 1U);
  parts.requests.cancel_all();
}

TEST_F(StepsTest, SmallStepsAndThoseThatWaitedForBlocksTellNothingOfTheTime) {
  EngineParts parts(*model_, 8);
  StepTimes times(parts.own.llama, parts.costs);
  times.note({1, 8, 8}, true, Clock::now() - 1s);
  EXPECT_FALSE(parts.costs.compute_known());
  times.note({1, 8, 8}, false, Clock::now() - 1s);
  times.forget();
  times.note_idle();
  EXPECT_FALSE(parts.costs.compute_known());
  times.note({1, 64, 64 * 32}, true, Clock::now() - 1s);
  EXPECT_TRUE(parts.costs.compute_known());
}

}  // namespace
}  // namespace kvtier::engine::test
