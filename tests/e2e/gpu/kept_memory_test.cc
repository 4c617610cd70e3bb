// HBM outlives the daemon that made it: an engine on a GPU runs on and hits in it again.
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "tests/e2e/daemon_process.h"
#include "tests/e2e/gpu/gpu_engine_under_test.h"

namespace kvtier::e2e {
namespace {

using namespace std::chrono_literals;

class GpuKeptMemory : public engine::test::OnGpu {
 protected:
  static std::uint32_t from_hbm(const engine::GenerateResult& result) {
    return result.reused_by_tier[index_of(Tier::device)];
  }
};

TEST_F(GpuKeptMemory, an_engine_hits_in_hbm_again_after_its_daemon_was_killed) {
  const auto model = engine::test::load_checkpoint(engine::test::kBundled[0]);
  ASSERT_NE(model, nullptr);
  DaemonProcess daemon({.device_capacity = "512MiB",
                        .device_backend = "cuda",
                        .host_capacity = "512MiB",
                        .extent_size = "64MiB",
                        .disk_capacity = "",
                        .kept = true});
  daemon.start();
  std::vector<std::vector<Token>> prompts;
  for (std::size_t i = 0; i < 4; ++i) prompts.push_back(text_tokens(i * 300, 700));
  GpuEngineUnderTest reference(*model, "");
  GpuEngineUnderTest engine(*model, daemon.socket());
  std::vector<std::vector<Token>> expected;
  for (const auto& prompt : prompts) (void)engine.answer(prompt, 4);
  engine.flush();
  for (const auto& prompt : prompts) {
    const auto result = engine.answer(prompt, 4);
    EXPECT_GT(from_hbm(result), 0U);
    expected.push_back(result.tokens);
  }
  engine.flush();
  const std::uint64_t in_hbm = daemon.status().blocks[index_of(Tier::device)];
  EXPECT_GT(in_hbm, 0U);

  for (std::uint64_t round = 1; round <= 3; ++round) {
    daemon.kill_and_start();
    EXPECT_GE(daemon.status().blocks[index_of(Tier::device)], in_hbm);
    engine.wait_connects(round + 1);
    // What the host tier has is not what is meant here.
    daemon.drop(TierSet{}.with(Tier::host));
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const auto result = engine.answer(prompts[i], 4);
      EXPECT_GT(from_hbm(result), 0U) << "round " << round << ", prompt " << i;
      EXPECT_EQ(result.tokens, expected[i]);
      const auto cached = engine.cached_payloads(prompts[i]);
      const auto computed = reference.computed_payloads(prompts[i]);
      ASSERT_FALSE(cached.empty());
      ASSERT_LE(cached.size(), computed.size());
      EXPECT_TRUE(std::equal(cached.begin(), cached.end(), computed.begin()));
    }
    const DaemonStatus status = daemon.status();
    EXPECT_GT(status.hits[index_of(Tier::device)], 0U);
    EXPECT_EQ(status.quarantined, 0U);
  }
}

TEST_F(GpuKeptMemory, an_engine_that_works_through_kills_gives_no_wrong_answer) {
  const auto model = engine::test::load_checkpoint(engine::test::kBundled[0]);
  ASSERT_NE(model, nullptr);
  DaemonProcess daemon({.device_capacity = "256MiB",
                        .device_backend = "cuda",
                        .host_capacity = "512MiB",
                        .extent_size = "64MiB",
                        .disk_capacity = "",
                        .kept = true});
  daemon.start();
  GpuEngineUnderTest engine(*model, daemon.socket());
  std::vector<std::vector<Token>> prompts, expected;
  for (std::size_t i = 0; i < 6; ++i) prompts.push_back(text_tokens(i * 300, 700));
  for (const auto& prompt : prompts) (void)engine.answer(prompt, 4);
  engine.flush();
  for (const auto& prompt : prompts) expected.push_back(engine.answer(prompt, 4).tokens);
  constexpr int kKills = 10;
  std::atomic<int> hits{0};
  std::atomic<bool> ended{false};
  // Each daemon is killed in the middle of what comes after its first hits.
  std::thread killer([&] {
    for (int kill = 1; kill <= kKills; ++kill) {
      while (hits < 3 * kill) std::this_thread::yield();
      daemon.kill_and_start();
    }
    ended = true;
  });
  const auto give_up = Clock::now() + 120s;
  for (std::size_t i = 0; !ended; i = (i + 1) % prompts.size()) {
    const auto result = engine.answer(prompts[i], 4);
    const bool hit = result.reused_tokens > 0;  // a computed answer may round otherwise
    if (hit) {
      EXPECT_EQ(result.tokens, expected[i]);
    }
    // Without hits the killer would wait for ever.
    if (hit || Clock::now() > give_up) ++hits;
  }
  EXPECT_LT(Clock::now(), give_up);
  killer.join();
}

}  // namespace
}  // namespace kvtier::e2e
