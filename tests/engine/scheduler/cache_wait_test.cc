// What a request does when the cache does not answer, or answers and brings nothing.
#include "engine_adapter/reference/scheduler/prefix/cache_wait.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "engine_adapter/reference/scheduler/scheduler.h"
#include "tests/engine/scheduler/scheduled.h"

namespace kvtier::engine::test {
namespace {

using namespace std::chrono_literals;

TEST(CacheWait, IsOneForAllThatIsAskedAndBeginsAnewWithNews) {
  CacheWait wait(1s);
  wait.spend(400ms);
  EXPECT_EQ(wait.left(), 600ms);
  EXPECT_EQ(wait.deadline(Clock::time_point(10s)), Clock::time_point(10s + 600ms));
  wait.news();
  EXPECT_EQ(wait.left(), 1s);
  wait.spend(2s);
  EXPECT_TRUE(wait.over());
  wait.news();
  EXPECT_TRUE(wait.over()) << "a request that has given up asks no more";
}

class HungCacheTest : public ScheduledTest {
 protected:
  static void fill(FakeCache& cache, const Request& request) {
    ScheduledTest::fill(cache, request);
    cache.leases.clear();
  }
};

// Leases that were asked for blocks; those without count lookups, and nobody waits for them.
std::size_t waited_for(const FakeCache& cache) {
  return cache.leases.size() -
         static_cast<std::size_t>(std::ranges::count(cache.leases, std::uint32_t{0}));
}

TEST_F(HungCacheTest, ARequestAsksOnceAndThenComputesWhateverIsLeftToAsk) {
  for (const LoadPolicy policy : {LoadPolicy::always_load, LoadPolicy::always_both}) {
    FakeCache cache(model_->ns(kScheduledFormat));
    const Request asked = request(500, 8);
    fill(cache, asked);
    cache.lease_error = Errc::deadline;
    Scheduled scheduled(*model_, &cache, 64, {.step_tokens = 16, .load_policy = policy});
    const auto collected = scheduled.add(asked);
    scheduled.run();
    EXPECT_EQ(waited_for(cache), 1U);
    EXPECT_EQ(collected->tokens(), Scheduled::alone(*model_, asked));
  }
}

// Its blocks are on their way, and stay so.
TEST_F(HungCacheTest, BlocksThatNeverComeAreComputedOnceTheDeadlineIsOver) {
  FakeCache cache(model_->ns(kScheduledFormat));
  const Request first = request(200, 8);
  fill(cache, first);
  cache.settle_delay = 1'000'000'000;
  cache.ready_max = 0;
  Scheduled scheduled(*model_, &cache, 64, {.load_policy = LoadPolicy::always_load});
  std::vector<std::shared_ptr<Collected>> all;
  for (int i = 0; i < 3; ++i) {
    Request each = first;  // the others wait for the load of the first
    each.cache_deadline = 20ms;
    all.push_back(scheduled.add(each));
  }
  const auto give_up = Clock::now() + 120s;
  while (!scheduled.engine().idle() && Clock::now() < give_up) scheduled.engine().turn();
  for (const auto& each : all) EXPECT_EQ(each->tokens(), Scheduled::alone(*model_, first));
  EXPECT_EQ(waited_for(cache), 1U);
}

// Waits for every lease until its deadline, as a daemon that has stopped makes it.
class StoppedCache final : public FakeCache {
 public:
  using Cache::lease;
  using FakeCache::FakeCache;
  Result<Lease> lease(std::span<const Token> tokens, BlockRange range, Deadline deadline) override {
    if (!stopped) return FakeCache::lease(tokens, range, deadline);
    std::unique_lock lock(mutex_);
    never_.wait_until(lock, deadline, [] { return false; });
    if (range.end > range.first) last_wait_end = Clock::now().time_since_epoch().count();
    return make_error(Errc::deadline, "stopped by the test");
  }
  std::atomic<bool> stopped{false};
  std::atomic<Clock::rep> last_wait_end{0};

 private:
  std::mutex mutex_;
  std::condition_variable never_;
};

struct Done final : RequestListener {
  void token(std::uint32_t, const ChosenToken&) override {}
  void finished(std::uint32_t, FinishReason) override {}
  void done(RequestResult result) override {
    EXPECT_FALSE(result.error);
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, 300s, [&] { return ended; });
  }
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
};

// They come together and get their pages one after the other: a deadline each would be twenty-four.
TEST_F(HungCacheTest, RequestsThatWaitedForPagesMeanwhileDoNotWaitForTheCacheAgain) {
  constexpr auto kDeadline = 300ms;
  StoppedCache cache(model_->ns(kScheduledFormat));
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < 24; ++i) {
    requests.push_back(request(100, 2, 100 + i));
    requests.back().cache_deadline = kDeadline;
    fill(cache, requests.back());
  }
  cache.stopped = true;
  TestEngine parts(*model_, kScheduledFormat, 32, 16);
  CacheSpaces spaces(parts.ns, &cache);
  const auto begun = Clock::now();
  std::vector<std::shared_ptr<Done>> all;
  {
    Scheduler scheduler(parts.llama, *parts.pool, spaces,
                        {.running_max = 1, .load_policy = LoadPolicy::always_load});
    for (const Request& each : requests) {
      all.push_back(std::make_shared<Done>());
      ASSERT_TRUE(scheduler.submit(each, all.back()));
    }
    for (const auto& each : all) EXPECT_TRUE(each->wait());
  }
  // Nobody waited for blocks after the deadline of the last that came.
  const auto last = Clock::time_point(Clock::duration(cache.last_wait_end.load())) - begun;
  EXPECT_LT(last, 3 * kDeadline);
}

// A daemon that is back is asked again, by those that come then.
TEST_F(HungCacheTest, ACacheThatAnswersAgainIsUsedAgain) {
  FakeCache cache(model_->ns(kScheduledFormat));
  const Request asked = request(100, 2);
  fill(cache, asked);
  Scheduled scheduled(*model_, &cache, 64,
                      {.keep_pages = false, .load_policy = LoadPolicy::always_load});
  cache.lease_error = Errc::deadline;
  const auto first = scheduled.add(asked);
  scheduled.run();
  EXPECT_EQ(first->result->usage.cached(), 0U);
  cache.lease_error.reset();
  const auto second = scheduled.add(asked);
  scheduled.run();
  EXPECT_EQ(second->result->usage.cached(), 96U);
}

}  // namespace
}  // namespace kvtier::engine::test
