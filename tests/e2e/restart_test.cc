#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/e2e/daemon_process.h"
#include "tests/e2e/engine_under_test.h"

namespace kvtier::e2e {
namespace {

using namespace std::chrono_literals;
constexpr std::uint32_t kAnswerTokens = 2;

TEST(Restart, usage_and_blocks_on_disk_are_restored_and_the_cap_still_holds) {
  const auto model = engine::test::TestModel::make_small();
  DaemonProcess daemon({.host_capacity = "4MiB",
                        .extent_size = "256KiB",
                        .disk_capacity = "34MiB",
                        .segment_size = "64KiB"});
  daemon.start();
  auto engine = std::make_unique<EngineUnderTest>(*model, kFormat, daemon.socket());
  engine->wait_connected();
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    (void)engine->answer(request_of(*model, seed, kAnswerTokens));
    ASSERT_TRUE(engine->client().flush(Clock::now() + 30s).has_value());
  }
  const auto before = daemon.status();
  EXPECT_GT(before.evictions[index_of(Tier::disk)], 0U) << "the disk tier was never full";
  daemon.stop_and_start();
  const auto after = daemon.status();
  EXPECT_EQ(after.blocks[index_of(Tier::disk)], before.blocks[index_of(Tier::disk)]);
  EXPECT_EQ(after.taken_bytes[index_of(Tier::disk)], before.taken_bytes[index_of(Tier::disk)]);
  EXPECT_LE(after.taken_bytes[index_of(Tier::disk)], after.cap_bytes[index_of(Tier::disk)]);

  // The newest is there, the oldest was evicted long ago.
  engine->wait_connected();
  EXPECT_EQ(engine->answer(request_of(*model, 40, kAnswerTokens)).reused_tokens, 160U);
  EXPECT_EQ(engine->answer(request_of(*model, 1, kAnswerTokens)).reused_tokens, 0U);
}

TEST(Restart, what_was_used_last_before_a_restart_is_evicted_last_after_it) {
  const auto model = engine::test::TestModel::make_small();
  DaemonProcess daemon({.host_capacity = "4MiB",
                        .extent_size = "256KiB",
                        .disk_capacity = "34MiB",
                        .segment_size = "64KiB"});
  daemon.start();
  auto engine = std::make_unique<EngineUnderTest>(*model, kFormat, daemon.socket());
  engine->wait_connected();
  const auto put = [&](std::uint64_t seed) {
    const auto result = engine->answer(request_of(*model, seed, kAnswerTokens));
    EXPECT_TRUE(engine->client().flush(Clock::now() + 30s).has_value());
    return result.reused_tokens;
  };
  for (std::uint64_t seed = 1; seed <= 12; ++seed) put(seed);
  EXPECT_EQ(put(1), 160U);  // used again: now the newest
  daemon.stop_and_start();
  engine->wait_connected();
  std::uint64_t seed = 100;
  while (daemon.status().evictions[index_of(Tier::disk)] < 40) put(seed++);
  EXPECT_EQ(put(1), 160U);
  EXPECT_LT(put(2), 160U);
}

TEST(Restart, an_engines_reserved_slots_are_freed_when_its_process_has_ended) {
  const auto model = engine::test::TestModel::make_small();
  DaemonProcess daemon;
  daemon.start();
  const pid_t child = ::fork();
  if (child == 0) {
    EngineUnderTest engine(*model, kFormat, daemon.socket());
    engine.wait_connected();
    (void)engine.answer(request_of(*model, 1, kAnswerTokens));
    (void)engine.client().flush(Clock::now() + 30s);
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const auto give_up = Clock::now() + 30s;
  DaemonStatus now = daemon.status();
  while ((now.reserved != 0 || now.quarantined != 0 || now.leases != 0) && Clock::now() < give_up) {
    now = daemon.status();
  }
  EXPECT_EQ(now.reserved + now.quarantined + now.leases, 0U);
  EXPECT_GE(now.blocks[index_of(Tier::host)], 10U);
}

}  // namespace
}  // namespace kvtier::e2e
