// What an engine learns of a model that computes behind its back, as one on a GPU does.
#include <gtest/gtest.h>

#include "tests/engine/scheduler/scheduled.h"

namespace kvtier::engine::test {
namespace {

using namespace std::chrono_literals;

// Computes in step(), but says as a GPU would that the work is still under way.
class ModelBehind final : public Model {
 public:
  explicit ModelBehind(Llama& inner) : inner_(inner) {}

  Result<void> step(std::span<const StepInput> inputs, std::span<float> logits,
                    const LayerGate& gate) override {
    busy = true;
    return inner_.step(inputs, logits, gate);
  }
  Result<void> step_and_choose(std::span<const StepInput> inputs, std::span<const Choice> choices,
                               std::span<Token> tokens, const LayerGate& gate) override {
    busy = false;
    return inner_.step_and_choose(inputs, choices, tokens, gate);
  }
  Result<void> step_and_tell(std::span<const StepInput> inputs,
                             std::span<const RowQuestion> questions, std::span<RowAnswer> answers,
                             const LayerGate& gate) override {
    busy = false;
    return inner_.step_and_tell(inputs, questions, answers, gate);
  }
  StreamView stream() const noexcept override {
    return StreamView(reinterpret_cast<CUstream_st*>(const_cast<ModelBehind*>(this)));
  }
  void wait() override {
    ++waits;
    busy = false;
  }
  bool computing() override { return busy; }
  const ModelConfig& config() const noexcept override { return inner_.config(); }
  std::uint32_t rows_max() const noexcept override { return inner_.rows_max(); }

  bool busy = false;
  int waits = 0;

 private:
  Llama& inner_;
};

// Half of a prompt comes from a disk that takes its time, the engine has computed the other half:
// the rate of computing is known, and the time of waiting is no part of it.
TEST(MeasuredSteps, WaitingForTheDiskIsNoTimeOfComputing) {
  constexpr std::uint32_t kTokens = 650;
  const auto model = TestModel::make_small();
  FakeCache cache(model->ns(kScheduledFormat));
  Request request;
  request.prompt = random_tokens(kTokens, model->config.vocab_size, 3);
  request.tokens_max = 1;
  request.cache_deadline = 600s;
  {
    Scheduled filling(*model, &cache, 64);
    filling.add(request);
    filling.run();
  }
  cache.tier = Tier::disk;
  cache.settle_delay = 1'000'000'000;

  TestEngine parts(*model, kScheduledFormat, 128, 64);
  ModelBehind behind(parts.llama);
  DirectLeases leases;
  Engine engine(behind, *parts.pool, leases, {.load_policy = LoadPolicy::always_both});
  const auto collected = std::make_shared<Collected>();
  engine.add(RequestId(1), request,
             {id_of(parts.ns), std::shared_ptr<Cache>(&cache, [](Cache*) {})}, collected);
  while (engine.turn()) {
  }
  EXPECT_EQ(behind.waits, 1) << "after the first step of a prompt, once";
  behind.busy = false;
  for (const auto until = Clock::now() + 1s; Clock::now() < until;) engine.turn();
  cache.settle_delay = 0;
  engine.cancel_all();
  Request next = request;
  next.prompt = random_tokens(250, model->config.vocab_size, 4);
  engine.add(RequestId(2), next, {id_of(parts.ns), nullptr}, std::make_shared<Collected>());
  while (!engine.idle()) engine.turn();

  const auto seconds = engine.costs().compute_seconds(StepWork::of(0, kTokens, 128));
  ASSERT_TRUE(seconds);
  EXPECT_LT(*seconds, 0.7);
}

}  // namespace
}  // namespace kvtier::engine::test
