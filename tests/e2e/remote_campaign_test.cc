// Random schedules of what can become of a shared store, under load: a cluster of three masters and
// a replica of each. KVTIER_REMOTE_SCHEDULES says how many; KVTIER_REMOTE_SEED is the first's seed.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/e2e/daemon_process.h"
#include "tests/e2e/engine_under_test.h"
#include "tests/e2e/run_program.h"
#include "tests/storage/remote/support/redis_server.h"

namespace kvtier::e2e {
namespace {

using namespace std::chrono_literals;
using storage::testing::RedisCluster;
using storage::testing::RedisServer;

std::uint64_t number_in(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// A loopback interface of this thread's own, and of the threads and programs that it starts, which
// can be made slow. False: no right to it here.
bool have_own_loopback() {
  static const bool own = ::unshare(CLONE_NEWNET) == 0 &&
                          run("ip link set lo up && tc qdisc add dev lo root tbf rate " +
                              std::string("1gbit burst 1mb latency 50ms"))
                                  .exit_code == 0;
  return own;
}

// What has become of the store, by kind.
enum class Misfortune { killed, stopped, full, paused, emptied, failed_over, slow, well, count };
constexpr std::array kNames{"killed",  "stopped",     "full", "paused",
                            "emptied", "failed over", "slow", "well"};
using Tally = std::array<std::uint64_t, static_cast<std::size_t>(Misfortune::count)>;

// From begin() to end() one thing after another happens to the cluster; then all is well again. Its
// thread outlives what it starts: a server dies with the thread that has started it.
class Misfortunes {
 public:
  Misfortunes(RedisCluster& cluster, bool may_slow)
      : cluster_(cluster), may_slow_(may_slow), thread_([this] { run(); }) {}
  ~Misfortunes() {
    end();
    become(Phase::over);
    thread_.join();
  }
  Misfortunes(const Misfortunes&) = delete;

  void begin(std::uint64_t seed) {
    random_.seed(seed);
    happened_ = 0;
    become(Phase::going_on);
  }
  void end() {
    if (phase_ != Phase::going_on) return;
    become(Phase::ending);
    phase_.wait(Phase::ending);
  }
  std::uint64_t happened() const noexcept { return happened_; }
  // Of all schedules; after end().
  const Tally& tally() const noexcept { return tally_; }

 private:
  enum class Phase { well, going_on, ending, over };
  void become(Phase phase) {
    phase_ = phase;
    phase_.notify_all();
  }
  void run() {
    while (phase_ != Phase::over) {
      phase_.wait(Phase::well);
      while (phase_ == Phase::going_on) {
        happen(static_cast<Misfortune>(random_() % static_cast<std::uint64_t>(Misfortune::count)));
        ++happened_;
        std::this_thread::sleep_for(std::chrono::milliseconds(random_() % 100));
      }
      if (phase_ != Phase::ending) continue;
      mend();
      become(Phase::well);
    }
  }
  void happen(Misfortune what) {
    const std::size_t number = random_() % cluster_.size();
    if (down_ && (*down_ == number || random_() % 3 == 0)) start();
    RedisServer& server = cluster_[number];
    ++tally_[static_cast<std::size_t>(what)];
    switch (what) {
      case Misfortune::killed:
        if (down_) start();
        down_ = number;
        return server.kill();
      case Misfortune::stopped:
        server.stop();
        std::this_thread::sleep_for(std::chrono::milliseconds(random_() % 1500));
        return server.go_on();
      case Misfortune::full:
        return say(number, {"CONFIG", "SET", "maxmemory", "3mb"});  // writes are refused
      case Misfortune::paused:
        return say(number, {"CLIENT", "PAUSE", std::to_string(random_() % 100)});
      case Misfortune::emptied:
        return say(number, {"FLUSHALL", "ASYNC"});  // all has expired
      case Misfortune::failed_over:                 // only a replica does it
        return say(number, {"CLUSTER", "FAILOVER"});
      case Misfortune::slow:
        return set_rate(random_() % 2 == 0 ? "4mbit" : "40mbit");
      default:
        mend();
        std::this_thread::sleep_for(300ms);
    }
  }
  void mend() {
    if (down_) start();
    for (std::size_t i = 0; i < cluster_.size(); ++i) say(i, {"CONFIG", "SET", "maxmemory", "0"});
    set_rate("1gbit");
  }
  void start() {
    cluster_[*down_].start();
    down_.reset();
  }
  void say(std::size_t number, const std::vector<std::string>& command) {
    if (down_ != number) (void)cluster_[number].try_to_ask(command);
  }
  void set_rate(const std::string& rate) {
    if (!may_slow_) return;
    EXPECT_EQ(e2e::run("tc qdisc change dev lo root tbf rate " + rate + " burst 1mb latency 50ms")
                  .exit_code,
              0);
  }

  RedisCluster& cluster_;
  const bool may_slow_;
  std::mt19937_64 random_;
  std::atomic<Phase> phase_{Phase::well};
  std::atomic<std::uint64_t> happened_{0};
  Tally tally_{};
  std::optional<std::size_t> down_;
  std::thread thread_;
};

class RemoteCampaign : public ::testing::Test {
 protected:
  void SetUp() override {
    KVTIER_NEEDS_REDIS();
    may_slow_ = have_own_loopback();
    cluster_ = std::make_unique<RedisCluster>();
    for (std::size_t of = 0; of < 3; ++of) cluster_->add_replica(of);
  }
  DaemonOptions of_host(bool remote = true) const {
    DaemonOptions options;
    options.disk_capacity = "";
    options.host_capacity = "4MiB";
    if (remote) options.more = "[remote]\nurl = '" + cluster_->url() + "'\nadmission = 'all'\n";
    return options;
  }
  // Counted by the cluster: each change of a master is an epoch of its own.
  std::uint64_t epoch() const {
    std::uint64_t newest = 0;
    for (std::size_t i = 0; i < cluster_->size(); ++i) {
      const std::string info = (*cluster_)[i].say({"CLUSTER", "INFO"});
      const std::string name = "cluster_current_epoch:";
      newest =
          std::max<std::uint64_t>(newest, std::stoull(info.substr(info.find(name) + name.size())));
    }
    return newest;
  }
  void requests_end_with_the_right_tokens(std::uint64_t first, std::uint64_t schedules);

  bool may_slow_ = false;
  std::unique_ptr<RedisCluster> cluster_;
};

// Two engines, each on a host of its own. What one was asked the other is asked behind it.
void RemoteCampaign::requests_end_with_the_right_tokens(std::uint64_t first,
                                                        std::uint64_t schedules) {
  constexpr std::uint64_t kLeastMisfortunes = 6;
  const auto model = engine::test::TestModel::make_small();
  ReferenceEngine reference(*model, kFormat);
  DaemonProcess a(of_host()), b(of_host());
  a.start();
  b.start();
  EngineUnderTest on_a(*model, kFormat, a.socket()), on_b(*model, kFormat, b.socket());
  on_a.wait_connected();
  on_b.wait_connected();
  const std::uint64_t began = epoch();
  std::uint64_t requests = 0;
  Misfortunes misfortunes(*cluster_, may_slow_);
  for (std::uint64_t seed = first; seed < first + schedules; ++seed) {
    SCOPED_TRACE("KVTIER_REMOTE_SEED=" + std::to_string(seed) + " KVTIER_REMOTE_SCHEDULES=1");
    SharedPrompts prompts(model->config.vocab_size, 6, seed);
    misfortunes.begin(seed);
    for (int i = 0; i < 30 || misfortunes.happened() < kLeastMisfortunes; ++i) {
      auto request = prompts.next();
      request.cache_deadline = 2s;
      const bool a_first = prompts.draw(0, 1) == 0;
      for (const bool ask_a : {a_first, !a_first}) {
        ++requests;
        ASSERT_EQ((ask_a ? on_a : on_b).answer(request).tokens, reference.answer(request));
      }
      if (i % 5 == 4) {
        for (const DaemonProcess* host : {&a, &b}) host->drop(TierSet{}.with(Tier::host));
      }
    }
    misfortunes.end();
  }
  const auto of_a = on_a.client().stats(), of_b = on_b.client().stats();
  const std::uint64_t remote = of_a.remote_hits() + of_b.remote_hits();
  const std::uint64_t failovers = epoch() - began;
  std::printf(
      "%llu requests, %llu blocks from the cluster, %llu that did not hold, %llu failovers;",
      static_cast<unsigned long long>(requests), static_cast<unsigned long long>(remote),
      static_cast<unsigned long long>(of_a.faults + of_b.faults),
      static_cast<unsigned long long>(failovers));
  for (std::size_t i = 0; i < kNames.size(); ++i)
    std::printf(" %s %llu", kNames[i], static_cast<unsigned long long>(misfortunes.tally()[i]));
  std::printf("; the link %s\n", may_slow_ ? "was slowed" : "could not be slowed: not root");
  EXPECT_GT(remote, 0U);
  EXPECT_EQ(of_a.faults + of_b.faults, 0U);
}

TEST_F(RemoteCampaign, every_request_ends_with_the_right_tokens_in_a_few_schedules) {
  requests_end_with_the_right_tokens(1, 2);
}

TEST_F(RemoteCampaign,
       slow_every_request_ends_with_the_right_tokens_whatever_becomes_of_the_store) {
  requests_end_with_the_right_tokens(number_in("KVTIER_REMOTE_SEED", 1),
                                     number_in("KVTIER_REMOTE_SCHEDULES", 20));
}

// In turns, so that what else the machine does meets both alike.
TEST_F(RemoteCampaign, slow_what_hits_on_its_own_host_is_as_soon_beside_a_store_in_trouble) {
  const auto model = engine::test::TestModel::make_small();
  DaemonProcess with(of_host()), without(of_host(false));
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
  Misfortunes misfortunes(*cluster_, may_slow_);
  misfortunes.begin(1);
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
