// An engine under a test's control, turn by turn, and what its requests answered.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "engine_adapter/reference/scheduler/engine.h"
#include "engine_adapter/reference/scheduler/generator.h"
#include "engine_adapter/reference/scheduler/request_check.h"
#include "tests/engine/scheduler/fake_cache.h"
#include "tests/engine/support.h"

namespace kvtier::engine::test {

struct Collected final : RequestListener {
  void token(std::uint32_t sample, const ChosenToken& chosen) override {
    EXPECT_FALSE(result.has_value());
    seen[sample].push_back(chosen.token);
  }
  void prompt(std::vector<ChosenToken> tokens) override {
    EXPECT_TRUE(prompt_told.empty()) << "told twice";
    prompt_told = std::move(tokens);
  }
  void finished(std::uint32_t sample, FinishReason reason) override { reasons[sample] = reason; }
  void done(RequestResult all) override {
    EXPECT_FALSE(result.has_value()) << "told twice";
    result = std::move(all);
  }

  std::vector<Token> tokens(std::size_t answer = 0) const {
    std::vector<Token> tokens;
    for (const auto& chosen : result->answers.at(answer).tokens) tokens.push_back(chosen.token);
    return tokens;
  }

  std::vector<ChosenToken> prompt_told;
  std::map<std::uint32_t, std::vector<Token>> seen;
  std::map<std::uint32_t, FinishReason> reasons;
  std::optional<RequestResult> result;
};

constexpr StorageFormat kScheduledFormat = StorageFormat::fp8_e4m3;

class Scheduled {
 public:
  Scheduled(const TestModel& model, Cache* cache, std::uint32_t pages,
            SchedulerOptions options = {}, std::uint32_t chunk = 32)
      : engine_(model, kScheduledFormat, chunk, pages),
        options_(options),
        cache_(cache, [](Cache*) {}),
        scheduler_(std::make_unique<Engine>(engine_.llama, *engine_.pool, leases_, options)) {}

  std::shared_ptr<Collected> add(const Request& request) {
    const auto good = check_request(request, engine_.llama, *engine_.pool, options_);
    EXPECT_TRUE(good) << good.error().message;
    auto collected = std::make_shared<Collected>();
    last_ = RequestId(next_id_++);
    scheduler_->add(last_, request, {id_of(engine_.ns), cache_}, collected);
    return collected;
  }
  RequestId last() const noexcept { return last_; }
  Engine& engine() { return *scheduler_; }
  PagePool& pool() { return *engine_.pool; }

  // Until nothing is left to do; a run that does not end is a failure. A turn that only waits takes
  // no time to speak of, so turns alone say nothing.
  void run() {
    const auto begun = Clock::now();
    for (int i = 0; !scheduler_->idle(); ++i) {
      ASSERT_TRUE(i < 100'000 || Clock::now() - begun < std::chrono::seconds(10))
          << "it does not get on";
      scheduler_->turn();
    }
  }

  // What a request answers alone, without a cache.
  static std::vector<Token> alone(const TestModel& model, const Request& request,
                                  std::uint32_t sample = 0) {
    TestEngine engine(model, kScheduledFormat, 64, 256);
    Generator generator(engine.llama, *engine.pool, id_of(engine.ns), nullptr);
    GenerateRequest one{
        .prompt = request.prompt, .tokens_max = request.tokens_max, .sampling = request.sampling};
    one.sampling.seed += sample;
    return generator.generate(one).value().tokens;
  }

 private:
  TestEngine engine_;
  const SchedulerOptions options_;
  DirectLeases leases_;
  const std::shared_ptr<Cache> cache_;
  std::unique_ptr<Engine> scheduler_;
  RequestId last_{0};
  std::uint64_t next_id_ = 1;
};

class ScheduledTest : public OverSmallModel<testing::Test> {
 protected:
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
};

// Requests whose prompts have beginnings in common, some greedy, some sampled.
class Workload {
 public:
  Workload(std::uint32_t vocab, std::uint64_t seed) : vocab_(vocab), random_(seed) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      documents_.push_back(random_tokens(draw(20, 130), vocab, seed * 100 + i));
    }
  }

  std::uint64_t draw(std::uint64_t low, std::uint64_t high) {
    return low + random_.next() % (high - low + 1);
  }

  Request next() {
    Request request;
    const auto& document = documents_[draw(0, documents_.size() - 1)];
    const auto length = static_cast<std::ptrdiff_t>(draw(1, document.size()));
    request.prompt.assign(document.begin(), document.begin() + length);
    if (draw(0, 1) == 0) {
      const auto question = random_tokens(draw(1, 20), vocab_, random_.next());
      request.prompt.insert(request.prompt.end(), question.begin(), question.end());
    }
    request.tokens_max = static_cast<std::uint32_t>(draw(1, 40));
    if (draw(0, 1) == 0) request.sampling = {.temperature = 0.9, .seed = random_.next()};
    request.client = std::string(1, static_cast<char>('a' + draw(0, 2)));
    request.priority = static_cast<std::int32_t>(draw(0, 2));
    return request;
  }

 private:
  std::uint32_t vocab_;
  SplitMix64 random_;
  std::vector<std::vector<Token>> documents_;
};

}  // namespace kvtier::engine::test
