#include "engine_adapter/reference/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <numeric>

#include "tests/engine/scheduled.h"

namespace kvtier::engine::test {
namespace {

class SchedulerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = TestModel::make_small(); }
  static void TearDownTestSuite() { model_.reset(); }

  static Request request(std::size_t prompt, std::uint32_t tokens_max, std::uint64_t seed = 3) {
    Request made;
    made.prompt = random_tokens(prompt, model_->config.vocab_size, seed);
    made.tokens_max = tokens_max;
    return made;
  }
  static FakeCache make_cache() { return FakeCache(model_->ns(kScheduledFormat)); }
  static std::vector<Token> alone(const Request& request, std::uint32_t sample = 0) {
    return Scheduled::alone(*model_, request, sample);
  }
  // A cache with the blocks of `request`'s prompt.
  static void fill(FakeCache& cache, const Request& request) {
    Scheduled other(*model_, &cache, 64);
    Request prompt_only = request;
    prompt_only.tokens_max = 1;
    other.add(prompt_only);
    other.run();
  }

  static inline std::unique_ptr<TestModel> model_;
};

TEST_F(SchedulerTest, AnswersInABatchAreThoseOfEachRequestAlone) {
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

TEST_F(SchedulerTest, RequestsShareThePagesOfACommonPrefix) {
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

TEST_F(SchedulerTest, PagesThatAreKeptGoWhenOthersNeedThem) {
  Scheduled scheduled(*model_, nullptr, 8);
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const Request each = request(100, 10, seed);
    const auto collected = scheduled.add(each);
    scheduled.run();
    EXPECT_EQ(collected->tokens(), alone(each));
  }
  EXPECT_EQ(scheduled.engine().metrics().preemptions, 0U);
}

TEST_F(SchedulerTest, RequestsThatShareALoadingPrefixShareOneLoad) {
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

TEST_F(SchedulerTest, WhoWaitsForAnothersLoadComputesWhereItFails) {
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

TEST_F(SchedulerTest, ALoadGoesOnForOthersWhenTheRequestThatAskedForItIsCancelled) {
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

TEST_F(SchedulerTest, ALoadHoldsUpNobodyElse) {
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

TEST_F(SchedulerTest, WithAPoolTooSmallRequestsAreParkedAndNothingIsComputedTwice) {
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

TEST_F(SchedulerTest, WhatTheCacheDidNotKeepOfAParkedRequestIsComputedAgainAndCounted) {
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
TEST_F(SchedulerTest, TheFirstGetsOnWhileLoadedBlocksHoldAllPages) {
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

TEST_F(SchedulerTest, ACancelledRequestLeavesNothingBehindWhateverItWasDoing) {
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

TEST_F(SchedulerTest, SamplesAreTheAnswersOfRequestsWithSeedsThatFollow) {
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

TEST_F(SchedulerTest, SamplesThatAreParkedComeBackWithTheSameAnswers) {
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

TEST_F(SchedulerTest, LogprobsAreThoseOfTheLogits) {
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

TEST_F(SchedulerTest, BeamSearchFindsWhatAPlainOneFinds) {
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

TEST_F(SchedulerTest, BeamsThatAreParkedComeBackWithTheSameAnswers) {
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

TEST_F(SchedulerTest, AClientWithManyRequestsDoesNotKeepAnotherWaiting) {
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

TEST_F(SchedulerTest, ALongPromptIsNotStarvedByShortOnes) {
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

TEST_F(SchedulerTest, ManyMoreAnswersThanAStepHasRowsTakeTurns) {
  Scheduled scheduled(*model_, nullptr, 100, {.step_tokens = 4});
  std::vector<std::pair<Request, std::shared_ptr<Collected>>> asked;
  for (std::uint64_t i = 0; i < 10; ++i) {
    asked.emplace_back(request(5, 20, i), nullptr);
    asked.back().second = scheduled.add(asked.back().first);
  }
  scheduled.run();
  for (const auto& [each, collected] : asked) EXPECT_EQ(collected->tokens(), alone(each));
}

// Everything at random, with a cache that delays, drops and fails.
TEST_F(SchedulerTest, NoAnswerChangesOverRandomWalksWithAFaultyCache) {
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

TEST_F(SchedulerTest, RefusesWhatItCannotServe) {
  TestEngine engine(*model_, kScheduledFormat, 32, 8);
  CacheSpaces spaces(engine.ns);
  Scheduler scheduler(engine.llama, *engine.pool, spaces, {.waiting_max = 1});
  const auto refused = [&](const Request& request) {
    const auto id = scheduler.submit(request, std::make_shared<Collected>());
    return id ? std::string("taken") : id.error().message;
  };
  EXPECT_NE(refused(request(0, 1)).find("empty"), std::string::npos);
  EXPECT_NE(refused(request(1025, 1)).find("1024"), std::string::npos);
  EXPECT_NE(refused(request(100, 60)).find("--pool-tokens"), std::string::npos);
  Request beams = request(10, 4);
  beams.beam.width = 2;
  beams.sampling.temperature = 1;
  EXPECT_NE(refused(beams).find("temperature"), std::string::npos);
  Request samples = request(10, 4);
  samples.samples = 0;
  EXPECT_NE(refused(samples).find("n must be"), std::string::npos);
  Request salted = request(10, 4);
  salted.cache_salt = std::string(5000, 'x');
  EXPECT_NE(refused(salted).find("salt"), std::string::npos);
  EXPECT_EQ(scheduler.metrics().refused, 6U);
}

TEST_F(SchedulerTest, SaltsKeepRequestsFromSharing) {
  TestEngine engine(*model_, kScheduledFormat, 32, 64);
  CacheSpaces spaces(engine.ns);
  Scheduler scheduler(engine.llama, *engine.pool, spaces, {});
  struct Waiting final : RequestListener {
    void token(std::uint32_t, const ChosenToken&) override {}
    void finished(std::uint32_t, FinishReason) override {}
    void done(RequestResult all) override {
      const std::lock_guard lock(mutex);
      result = std::move(all);
      changed.notify_all();
    }
    RequestResult wait() {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return result.has_value(); });
      return *result;
    }
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<RequestResult> result;
  };
  const auto cached = [&](const std::string& salt) {
    Request each = request(100, 3);
    each.cache_salt = salt;
    const auto waiting = std::make_shared<Waiting>();
    EXPECT_TRUE(scheduler.submit(each, waiting));
    const RequestResult result = waiting->wait();
    EXPECT_EQ(result.answers[0].tokens.size(), 3U);
    return result.usage.cached_local;
  };
  EXPECT_EQ(cached(""), 0U);
  EXPECT_EQ(cached("tenant"), 0U);
  EXPECT_EQ(cached("tenant"), 96U);
  EXPECT_EQ(cached(""), 96U);
  // What is under way when the scheduler goes is told so.
  const auto waiting = std::make_shared<Waiting>();
  EXPECT_TRUE(scheduler.submit(request(900, 100, 5), waiting));
}

TEST_F(SchedulerTest, AFullQueueRefusesAndSaysSo) {
  TestEngine engine(*model_, kScheduledFormat, 32, 64);
  CacheSpaces spaces(engine.ns);
  std::vector<std::shared_ptr<Collected>> all;
  {
    Scheduler scheduler(engine.llama, *engine.pool, spaces, {.waiting_max = 2, .running_max = 1});
    std::string said;
    for (std::uint64_t i = 0; i < 64 && said.empty(); ++i) {
      const auto collected = std::make_shared<Collected>();
      const auto id = scheduler.submit(request(300, 100, i), collected);
      if (id) all.push_back(collected);
      if (!id) said = id.error().message;
    }
    EXPECT_NE(said.find("queue is full"), std::string::npos) << said;
  }
  for (const auto& each : all) EXPECT_TRUE(each->result) << "every request that was taken ends";
}

}  // namespace
}  // namespace kvtier::engine::test
