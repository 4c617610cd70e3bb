// Random schedules of what can become of a shared store, under load. KVTIER_REMOTE_SCHEDULES says
// how many; KVTIER_REMOTE_SEED is the first's seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "tests/e2e/daemon_process.h"
#include "tests/e2e/engine_under_test.h"
#include "tests/e2e/redis_process.h"
#include "tests/e2e/run_program.h"

namespace kvtier::e2e {
namespace {

using namespace std::chrono_literals;

std::uint64_t number_in(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// One thing after another happens to the store, until it is told to end; then all is well again.
class Misfortunes {
 public:
  Misfortunes(RedisProcess& redis, std::uint64_t seed)
      : redis_(redis), random_(seed), thread_([this] { run(); }) {}
  ~Misfortunes() {
    ending_ = true;
    thread_.join();
    redis_.send(SIGCONT);
    if (!up_) redis_.start();
    say("config set maxmemory 0");
  }
  Misfortunes(const Misfortunes&) = delete;

 private:
  void run() {
    while (!ending_) {
      happen(random_() % 6);
      std::this_thread::sleep_for(std::chrono::milliseconds(random_() % 40));
    }
  }
  void happen(std::uint64_t what) {
    if (!up_) {
      redis_.start();  // empty, as a replica that had nothing yet would be
      up_ = true;
      return;
    }
    switch (what) {
      case 0:
        redis_.stop(SIGKILL);
        up_ = false;
        return;
      case 1:
        redis_.send(SIGSTOP);
        std::this_thread::sleep_for(std::chrono::milliseconds(random_() % 60));
        return redis_.send(SIGCONT);
      case 2:
        return say("config set maxmemory 2mb");  // full: writes are refused
      case 3:
        return say("config set maxmemory 0");
      case 4:
        return say("client pause " + std::to_string(random_() % 50));
      default:
        return say("flushall async");  // all has expired
    }
  }
  void say(const std::string& command) {
    (void)e2e::run("timeout 1 redis-cli -s " + redis_.path() + " " + command);
  }

  RedisProcess& redis_;
  std::minstd_rand random_;
  std::atomic<bool> ending_{false};
  bool up_ = true;
  std::thread thread_;
};

class RemoteCampaign : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!RedisProcess::is_there()) GTEST_SKIP() << "there is no redis-server";
  }
  static DaemonOptions of_host(const RedisProcess* redis) {
    DaemonOptions options;
    options.disk_capacity = "";
    options.host_capacity = "4MiB";
    if (redis != nullptr)
      options.more = "[remote]\nurl = '" + redis->url() + "'\nadmission = 'all'\n";
    return options;
  }
};

TEST_F(RemoteCampaign,
       slow_every_request_ends_with_the_right_tokens_whatever_becomes_of_the_store) {
  const auto model = engine::test::TestModel::make_small();
  ReferenceEngine reference(*model, kFormat);
  const std::uint64_t first = number_in("KVTIER_REMOTE_SEED", 1);
  const std::uint64_t schedules = number_in("KVTIER_REMOTE_SCHEDULES", 20);
  RedisProcess redis;
  DaemonProcess a(of_host(&redis)), b(of_host(&redis));
  a.start();
  b.start();
  EngineUnderTest on_a(*model, kFormat, a.socket()), on_b(*model, kFormat, b.socket());
  on_a.wait_connected();
  on_b.wait_connected();
  std::uint64_t requests = 0;
  for (std::uint64_t seed = first; seed < first + schedules; ++seed) {
    SCOPED_TRACE("KVTIER_REMOTE_SEED=" + std::to_string(seed) + " KVTIER_REMOTE_SCHEDULES=1");
    SharedPrompts prompts(model->config.vocab_size, 6, seed);
    const Misfortunes misfortunes(redis, seed);
    for (int i = 0; i < 30; ++i, ++requests) {
      auto request = prompts.next();
      request.cache_deadline = 2s;
      EngineUnderTest& engine = prompts.draw(0, 1) == 0 ? on_a : on_b;
      ASSERT_EQ(engine.answer(request).tokens, reference.answer(request));
      if (i % 10 == 9) (prompts.draw(0, 1) == 0 ? a : b).drop(TierSet{}.with(Tier::host));
    }
  }
  const auto of_a = on_a.client().stats(), of_b = on_b.client().stats();
  std::printf("%llu requests, %llu blocks from other hosts, %llu that did not hold\n",
              static_cast<unsigned long long>(requests),
              static_cast<unsigned long long>(of_a.remote_hits() + of_b.remote_hits()),
              static_cast<unsigned long long>(of_a.faults + of_b.faults));
  EXPECT_GT(of_a.remote_hits() + of_b.remote_hits(), 0U);
  EXPECT_EQ(of_a.faults + of_b.faults, 0U);
}

// In turns, so that what else the machine does meets both alike.
TEST_F(RemoteCampaign, slow_what_hits_on_its_own_host_is_as_soon_beside_a_store_in_trouble) {
  const auto model = engine::test::TestModel::make_small();
  RedisProcess redis;
  DaemonProcess with(of_host(&redis)), without(of_host(nullptr));
  with.start();
  without.start();
  EngineUnderTest beside(*model, kFormat, with.socket()), alone(*model, kFormat, without.socket());
  beside.wait_connected();
  alone.wait_connected();
  const auto request = request_of(*model, 5, 1);
  for (EngineUnderTest* engine : {&beside, &alone}) {
    (void)engine->answer(request);
    ASSERT_TRUE(engine->client().flush(soon()));
  }
  const Misfortunes misfortunes(redis, 1);
  std::vector<double> of[2];
  for (int i = 0; i < 1500; ++i) {
    for (const int which : {0, 1}) {
      const auto began = Clock::now();
      ASSERT_EQ((which == 0 ? beside : alone).answer(request).reused_tokens, 160U);
      of[which].push_back(std::chrono::duration<double, std::milli>(Clock::now() - began).count());
    }
  }
  for (auto& times : of) std::ranges::sort(times);
  const auto p99 = [](const std::vector<double>& times) { return times[times.size() * 99 / 100]; };
  std::printf("p99 beside a store in trouble %.3f ms, without one %.3f ms\n", p99(of[0]),
              p99(of[1]));
  EXPECT_LE(p99(of[0]), 1.2 * p99(of[1]));
}

}  // namespace
}  // namespace kvtier::e2e
