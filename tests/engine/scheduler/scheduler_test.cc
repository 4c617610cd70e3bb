#include "engine_adapter/reference/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "tests/engine/scheduler/scheduled.h"

namespace kvtier::engine::test {
namespace {

class SchedulerTest : public ScheduledTest {};

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
