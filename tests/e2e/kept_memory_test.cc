// An engine that runs on while its daemon is killed and started again with the memory of the one
// before.
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <set>
#include <thread>

#include "tests/e2e/daemon_process.h"
#include "tests/e2e/engine_under_test.h"

namespace kvtier::e2e {
namespace {

using namespace std::chrono_literals;
constexpr std::uint32_t kAnswerTokens = 3;

// Where extents are mapped in this process.
std::set<std::string> mapped_extents() {
  std::set<std::string> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("kvtier-extent") != std::string::npos)
      found.insert(line.substr(0, line.find(' ')));
  }
  return found;
}

class KeptMemory : public testing::Test {
 protected:
  // Twice the tiers of memory and no disk.
  static DaemonOptions options() {
    return {.device_capacity = "8MiB", .disk_capacity = "", .kept = true};
  }
  KeptMemory() : model_(engine::test::TestModel::make_small()), reference_(*model_, kFormat) {
    daemon_.start();
    engine_ = std::make_unique<EngineUnderTest>(*model_, kFormat, daemon_.socket());
    engine_->wait_connected();
  }
  void wait_reconnected(std::uint64_t connects) {
    const auto give_up = Clock::now() + 30s;
    while (engine_->client().stats().connects < connects && Clock::now() < give_up)
      std::this_thread::yield();
    engine_->wait_connected();
  }
  void expect_hit(std::uint64_t seed, std::uint32_t reused) {
    const auto request = request_of(*model_, seed, kAnswerTokens);
    const auto result = engine_->answer(request);
    EXPECT_EQ(result.tokens, reference_.answer(request));
    EXPECT_EQ(result.reused_tokens, reused) << "prompt " << seed;
  }

  std::unique_ptr<engine::test::TestModel> model_;
  ReferenceEngine reference_;
  DaemonProcess daemon_{options()};
  std::unique_ptr<EngineUnderTest> engine_;
};

TEST_F(KeptMemory, an_engine_hits_again_after_its_daemon_was_killed_and_keeps_its_mappings) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) expect_hit(seed, 0);
  ASSERT_TRUE(engine_->client().flush(Clock::now() + 30s).has_value());
  for (std::uint64_t seed = 1; seed <= 4; ++seed) expect_hit(seed, 160);
  const auto mapped = mapped_extents();
  EXPECT_FALSE(mapped.empty());
  for (std::uint64_t round = 1; round <= 3; ++round) {
    daemon_.kill_and_start();
    wait_reconnected(round + 1);
    for (std::uint64_t seed = 1; seed <= 4; ++seed) expect_hit(seed, 160);
    const auto now = mapped_extents();
    EXPECT_TRUE(std::includes(now.begin(), now.end(), mapped.begin(), mapped.end()));
    EXPECT_EQ(now.size(), mapped.size());
  }
  const auto status = daemon_.status();
  EXPECT_GT(status.hits[index_of(Tier::device)], 0U);
  EXPECT_EQ(status.cap_bytes[index_of(Tier::disk)], 0U);
  EXPECT_EQ(engine_->client().stats().faults, 0U);
}

TEST_F(KeptMemory, slots_that_an_engine_had_reserved_are_free_again_while_it_runs_on) {
  expect_hit(1, 0);
  ASSERT_TRUE(engine_->client().flush(Clock::now() + 30s).has_value());
  for (std::uint64_t round = 1; round <= 5; ++round) {
    daemon_.kill_and_start();
    wait_reconnected(round + 1);
    const auto give_up = Clock::now() + 30s;
    DaemonStatus status = daemon_.status();
    while (status.quarantined != 0 && Clock::now() < give_up) status = daemon_.status();
    EXPECT_EQ(status.quarantined, 0U);
    EXPECT_LE(status.reserved, 32U) << "one round's slots, not those of all rounds";
  }
  expect_hit(2, 0);
  ASSERT_TRUE(engine_->client().flush(Clock::now() + 30s).has_value());
  expect_hit(2, 160);
}

TEST_F(KeptMemory, an_engine_that_works_through_many_kills_never_gives_a_wrong_answer) {
  constexpr int kKills = 8;
  std::atomic<int> hits{0};
  std::atomic<bool> ended{false};
  // Each daemon is killed in the middle of what comes after its first hits.
  std::thread killer([&] {
    for (int kill = 1; kill <= kKills; ++kill) {
      while (hits < 3 * kill) std::this_thread::yield();
      daemon_.kill_and_start();
    }
    ended = true;
  });
  SharedPrompts prompts(model_->config.vocab_size, 4, 5);
  std::uint64_t answers = 0, reused = 0;
  const auto give_up = Clock::now() + 120s;
  while (!ended) {
    auto request = prompts.next();
    request.cache_deadline = 200ms;
    const auto result = engine_->answer(request);
    EXPECT_EQ(result.tokens, reference_.answer(request)) << "after " << answers << " answers";
    reused += result.reused_tokens;
    // Without hits the killer would wait for ever.
    if (result.reused_tokens > 0 || Clock::now() > give_up) ++hits;
    ++answers;
  }
  EXPECT_LT(Clock::now(), give_up);
  killer.join();
  std::printf("%llu answers, %llu tokens of them from the cache\n",
              static_cast<unsigned long long>(answers), static_cast<unsigned long long>(reused));
  EXPECT_GT(reused, 0U);
  wait_reconnected(2);
}

}  // namespace
}  // namespace kvtier::e2e
