// What keeps a server serving: salts without end, and a device that hangs.
#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "engine_adapter/reference/scheduler/limits.h"
#include "engine_adapter/reference/scheduler/scheduler.h"
#include "tests/engine/scheduler/fake_cache.h"
#include "tests/engine/support.h"

namespace kvtier::engine::test {
namespace {

using namespace std::chrono_literals;
constexpr StorageFormat kFormat = StorageFormat::fp8_e4m3;

TEST(CacheSpacesTest, ASaltBeyondThoseThatHaveANamespaceIsServedWithoutTheCache) {
  const auto model = TestModel::make_small();
  FakeCache cache(model->ns(kFormat));
  std::size_t opened = 0;
  CacheSpaces spaces(model->ns(kFormat), [&](const Namespace&) {
    ++opened;
    return Result<std::shared_ptr<Cache>>(std::shared_ptr<Cache>(&cache, [](Cache*) {}));
  });
  for (std::uint32_t i = 0; i < kCacheSaltsMax; ++i) {
    EXPECT_NE(spaces.space("user-" + std::to_string(i)).value().cache, nullptr);
  }
  const auto further = spaces.space("one-too-many");
  ASSERT_TRUE(further) << further.error().message;
  EXPECT_EQ(further->cache, nullptr);
  EXPECT_NE(further->id, spaces.space("another").value().id) << "salts are kept apart all the same";
  EXPECT_NE(spaces.space("user-7").value().cache, nullptr);
  EXPECT_EQ(opened, kCacheSaltsMax);
}

// A device that ends its step when the test says so.
class HangingLlama final : public Llama {
 public:
  using Llama::Llama;
  Result<void> step_and_choose(std::span<const StepInput> inputs, std::span<const Choice> choices,
                               std::span<Token> tokens, const LayerGate& gate) override {
    {
      std::unique_lock lock(mutex_);
      released_changed_.wait(lock, [&] { return released_; });
    }
    return Llama::step_and_choose(inputs, choices, tokens, gate);
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    released_changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable released_changed_;
  bool released_ = false;
};

struct Ignoring final : RequestListener {
  void token(std::uint32_t, const ChosenToken&) override {}
  void finished(std::uint32_t, FinishReason) override {}
  void done(RequestResult) override {}
};

bool comes_true(const std::function<bool()>& condition) {
  const auto give_up = Clock::now() + 120s;
  while (!condition()) {
    if (Clock::now() > give_up) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(SchedulerTurnTest, AStepThatDoesNotEndShowsUntilItDoes) {
  const auto model = TestModel::make_small();
  const Namespace ns = model->ns(kFormat);
  const RecordLayout layout = RecordLayout::of(ns);
  const auto pool = PagePool::create(layout, 16).value();
  HangingLlama llama(model->config, model->weights, kernels::cpu_kernels(), layout, 32);
  CacheSpaces spaces(ns);
  Scheduler scheduler(llama, *pool, spaces, {});
  Request request;
  request.prompt = random_tokens(8, model->config.vocab_size, 1);
  request.tokens_max = 1;
  ASSERT_TRUE(scheduler.submit(request, std::make_shared<Ignoring>()));
  EXPECT_TRUE(comes_true([&] { return scheduler.in_turn() > 20ms; }));
  llama.release();
  EXPECT_TRUE(
      comes_true([&] { return scheduler.in_turn() == 0ns && scheduler.metrics().finished == 1; }));
}

}  // namespace
}  // namespace kvtier::engine::test
