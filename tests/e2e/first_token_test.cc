// The first token of a prompt that is on disk, where a router has said so ahead.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "tests/e2e/daemon_process.h"
#include "tests/e2e/engine_under_test.h"

namespace kvtier::e2e {
namespace {

using namespace std::chrono_literals;

// The best of some times each are compared, since whatever else runs here only ever adds.
TEST(FirstToken, from_disk_after_a_hint_a_second_ahead_comes_as_soon_as_from_host) {
  const auto model = engine::test::TestModel::make_small();
  ::setenv("KVTIER_DISK_BYTES_PER_S", "100000000", 1);
  ::setenv("KVTIER_DISK_LATENCY_US", "30000", 1);
  DaemonProcess daemon;
  daemon.start();
  ::unsetenv("KVTIER_DISK_BYTES_PER_S");
  ::unsetenv("KVTIER_DISK_LATENCY_US");
  EngineUnderTest engine(*model, StorageFormat::fp8_e4m3, daemon.socket());
  engine.wait_connected();
  // Another process, as a rule: all it needs is the namespace and the prompt.
  const auto router = Client::start({.socket = daemon.socket(), .name = "router"}).value();
  ASSERT_TRUE(router->wait_connected(Clock::now() + 30s));
  const auto known_to_router = router->open(engine.cache().ns()).value();

  const auto request = request_of(*model, 1, 1);
  Prefix prefix = known_to_router->prefix();
  ASSERT_TRUE(prefix.append(request.prompt));
  (void)engine.answer(request);
  ASSERT_TRUE(engine.client().flush(Clock::now() + 30s));
  const auto first_token = [&] {
    const auto began = Clock::now();
    EXPECT_EQ(engine.answer(request).reused_tokens, 160U);
    return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began);
  };
  // The release of the last lease may be on its way.
  const auto drop_host = [&] {
    while (daemon.status().blocks[index_of(Tier::host)] != 0)
      daemon.drop(TierSet{}.with(Tier::host));
  };
  constexpr int kTimesMin = 5, kTimesMax = 15;
  std::array<std::chrono::microseconds, 3> best;
  best.fill(1h);
  const auto as_soon = [&] { return best[2].count() <= best[0].count() * 11 / 10 + 100; };
  for (int i = 0; i < kTimesMax && (i < kTimesMin || !as_soon()); ++i) {
    // Every thread has been idle for as long as after a hint.
    ::poll(nullptr, 0, 1000);
    best[0] = std::min(best[0], first_token());
    drop_host();
    best[1] = std::min(best[1], first_token());
    drop_host();
    ASSERT_TRUE(known_to_router->hint(prefix, {0, prefix.blocks()}, {HintKind::prefetch}));
    ::poll(nullptr, 0, 1000);
    best[2] = std::min(best[2], first_token());
  }
  const char* const shown[]{"from host", "from disk", "from disk, hinted a second ahead"};
  for (std::size_t i = 0; i < best.size(); ++i)
    std::printf("first token %-34s %lld us\n", shown[i], static_cast<long long>(best[i].count()));
  EXPECT_TRUE(as_soon());
  EXPECT_GT(best[1].count(), 2 * best[0].count()) << "the disk was no slower";
}

}  // namespace
}  // namespace kvtier::e2e
