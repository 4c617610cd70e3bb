// Samples, beams and log probabilities.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine_adapter/reference/scheduler/answers/beam_answers.h"
#include "tests/engine/scheduler/engine_parts.h"

namespace kvtier::engine::test {
namespace {

class AnswersTest : public ScheduledTest {};

TEST_F(AnswersTest, SamplesAreTheAnswersOfRequestsWithSeedsThatFollow) {
  Request each = request(70, 30);
  each.samples = 4;
  each.sampling = {.temperature = 1.0, .seed = 40};
  Scheduled scheduled(*model_, nullptr, 64);
  const auto collected = scheduled.add(each);
  scheduled.run();
  for (std::uint32_t sample = 0; sample < 4; ++sample) {
    EXPECT_EQ(collected->tokens(sample), alone(each, sample)) << sample;
    EXPECT_EQ(collected->seen[sample], collected->tokens(sample));
    EXPECT_EQ(collected->reasons[sample], FinishReason::tokens_max);
  }
  EXPECT_NE(collected->tokens(0), collected->tokens(1));
  // 70 tokens of prompt once, and 29 fed tokens for each.
  EXPECT_EQ(scheduled.engine().metrics().tokens_computed, 70U + 4 * 29U);
}

TEST_F(AnswersTest, LogprobsAreThoseOfTheLogits) {
  Request each = request(50, 6);
  each.logprobs = true;
  each.top_logprobs = 5;
  Scheduled scheduled(*model_, nullptr, 64);
  const auto collected = scheduled.add(each);
  const auto plain = scheduled.add(request(30, 6, 9));
  scheduled.run();
  EXPECT_EQ(collected->tokens(), alone(each));
  EXPECT_EQ(plain->tokens(), alone(request(30, 6, 9)));
  auto tokens = each.prompt;
  for (const ChosenToken& chosen : collected->result->answers[0].tokens) {
    const auto logits = logits_of(*model_, kScheduledFormat, tokens, 16, 1);
    double total = 0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit));
    EXPECT_NEAR(chosen.logprob, logits[chosen.token] - std::log(total), 1e-5);
    ASSERT_EQ(chosen.top.size(), 5U);
    EXPECT_EQ(chosen.top[0].token, chosen.token);
    EXPECT_TRUE(std::ranges::is_sorted(chosen.top, std::greater{}, &TokenLogprob::logprob));
    tokens.push_back(chosen.token);
  }
}

// Beam search as it is written down: every hypothesis computed from its first token on.
struct Hypothesis {
  std::vector<Token> tokens;  // of the answer
  double sum = 0;
  double score = 0;
};

std::vector<Hypothesis> search(const TestModel& model, const Request& request,
                               const std::vector<Token>& ends) {
  std::vector<Hypothesis> live{{}}, finished;
  for (std::uint32_t step = 0; step < request.tokens_max && !live.empty(); ++step) {
    std::vector<Hypothesis> next;
    for (const Hypothesis& hypothesis : live) {
      auto tokens = request.prompt;
      tokens.insert(tokens.end(), hypothesis.tokens.begin(), hypothesis.tokens.end());
      const auto logits = logits_of(model, kScheduledFormat, tokens, 64, 1);
      const double most = *std::ranges::max_element(logits);
      double total = 0;
      for (const float logit : logits) total += std::exp(logit - most);
      for (Token token = 0; token < logits.size(); ++token) {
        Hypothesis longer = hypothesis;
        longer.tokens.push_back(token);
        longer.sum += static_cast<float>(logits[token] - most - std::log(total));
        next.push_back(std::move(longer));
      }
    }
    std::ranges::stable_sort(next, std::greater{}, &Hypothesis::sum);
    next.resize(std::min<std::size_t>(next.size(), 2 * request.beam.width));
    live.clear();
    for (Hypothesis& each : next) {
      const bool is_end = std::ranges::find(ends, each.tokens.back()) != ends.end();
      each.score = each.sum / std::pow(each.tokens.size(), request.beam.length_penalty);
      if (is_end) {
        each.tokens.pop_back();
        finished.push_back(each);
      } else if (live.size() < request.beam.width) {
        live.push_back(each);
      }
    }
  }
  finished.insert(finished.end(), live.begin(), live.end());
  std::ranges::stable_sort(finished, std::greater{}, &Hypothesis::score);
  finished.resize(std::min<std::size_t>(finished.size(), request.beam.width));
  return finished;
}

TEST_F(AnswersTest, BeamSearchFindsWhatAPlainOneFinds) {
  for (const double length_penalty : {0.0, 1.0, 2.0}) {
    Request each = request(37, 12);
    each.beam = {.width = 3, .length_penalty = length_penalty};
    each.samples = 3;
    each.stop_tokens = {3, 9, 22, 41};
    const auto expected = search(*model_, each, each.stop_tokens);
    Scheduled scheduled(*model_, nullptr, 64);
    const auto collected = scheduled.add(each);
    const auto beside = scheduled.add(request(20, 15, 4));
    scheduled.run();
    ASSERT_EQ(collected->result->answers.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(collected->tokens(i), expected[i].tokens) << length_penalty << " " << i;
      EXPECT_NEAR(collected->result->answers[i].score, expected[i].score, 1e-6);
    }
    EXPECT_EQ(beside->tokens(), alone(request(20, 15, 4)));
    EXPECT_EQ(scheduled.engine().metrics().pages_used, 0U);
  }
}

TEST_F(AnswersTest, AForkHasWhatItComesFromAndDrawsWithASeedOfItsOwn) {
  EngineParts parts(*model_, 16);
  Request sampled = request(40, 8);
  sampled.sampling = {.temperature = 1, .seed = 7};
  LiveRequest& live = parts.add(sampled);
  ASSERT_TRUE(parts.admission.admit());
  parts.step();
  parts.step();
  const Branch& from = *live.branches[0];
  const auto fork = parts.branches.fork(live, from, 2);
  ASSERT_NE(fork, nullptr);
  EXPECT_EQ(fork->index, 2U);
  EXPECT_EQ(fork->tokens, from.tokens);
  EXPECT_EQ(fork->sampler.options().seed, 9U);
  EXPECT_EQ(fork->sequence->length(), 40U);
  EXPECT_EQ(fork->sequence->page(1), from.sequence->page(1)) << "complete blocks are common";
  ASSERT_TRUE(fork->sequence->reserve(41)) << "the open one gets a page as it goes on";
  EXPECT_NE(fork->sequence->page(2), from.sequence->page(2));
  parts.requests.cancel_all();
}

TEST_F(AnswersTest, WhatWasComputedInVainChoosesNothing) {
  EngineParts parts(*model_, 16);
  LiveRequest& live = parts.add(request(10, 8));
  ASSERT_TRUE(parts.admission.admit());
  const auto inputs = parts.chooser.choose();
  const Token chosen[] = {5};
  parts.answers.take_chosen(inputs, std::vector<char>{0}, chosen);
  EXPECT_FALSE(live.forked);
  EXPECT_TRUE(parts.told[0]->seen.empty());
  parts.answers.take_chosen(inputs, std::vector<char>{1}, chosen);
  EXPECT_TRUE(live.forked);
  EXPECT_EQ(parts.told[0]->seen[0], std::vector<Token>{5});
  EXPECT_EQ(live.branches[0]->tokens.back(), 5U);
  parts.requests.cancel_all();
}

TEST_F(AnswersTest, ABeamThatFinishesIsAHypothesisAndTheLikeliestOthersGoOn) {
  EngineParts parts(*model_, 16);
  Request beams = request(10, 8);
  beams.beam.width = 2;
  beams.stop_tokens = {3};
  LiveRequest& live = parts.add(beams);
  ASSERT_TRUE(parts.admission.admit());
  parts.step();
  ASSERT_EQ(live.branches.size(), 2U);
  for (const auto& branch : live.branches) branch->answer.logprob_sum = -1;
  const auto before = live.branches[0]->answer.tokens;
  RowAnswer first, second;
  first.likeliest = {{3, -0.1F}, {4, -0.5F}, {5, -3.0F}, {6, -4.0F}};
  second.likeliest = {{7, -0.25F}, {8, -5.0F}, {9, -6.0F}, {10, -7.0F}};
  RowAnswer* const rows[] = {&first, &second};
  BeamAnswers answers(parts.own.llama.config(), parts.requests, parts.branches, parts.metrics);
  live.hypotheses.clear();
  answers.step(live, rows);
  ASSERT_EQ(live.hypotheses.size(), 1U);
  EXPECT_EQ(live.hypotheses[0].tokens.size(), before.size()) << "without its end token";
  EXPECT_NEAR(live.hypotheses[0].logprob_sum, -1.1, 1e-6);
  ASSERT_EQ(live.branches.size(), 2U);
  EXPECT_EQ(live.branches[0]->tokens.back(), 7U);
  EXPECT_EQ(live.branches[1]->tokens.back(), 4U);
  EXPECT_EQ(live.state, LiveRequest::State::running);
  parts.requests.cancel_all();
}

}  // namespace
}  // namespace kvtier::engine::test
