// Hosts that share a Redis: each has a daemon and an engine of its own.
#include <gtest/gtest.h>

#include <thread>

#include "tests/e2e/daemon_process.h"
#include "tests/e2e/engine_under_test.h"
#include "tests/e2e/run_program.h"
#include "tests/storage/remote/support/redis_server.h"

namespace kvtier::e2e {
namespace {

using storage::testing::RedisServer;

using namespace std::chrono_literals;

// A busy machine may be late where a store is asked before a lease.
DaemonOptions of_host(const RedisServer& redis,
                      const std::string& more = "lookup_timeout_ms = 1000\n") {
  DaemonOptions options;
  options.disk_capacity = "";
  options.more = "[remote]\nurl = '" + redis.url() + "'\nadmission = 'all'\n" + more;
  return options;
}

// Polled, with a bound: what a daemon says of itself has no event.
template <class Is>
bool comes_to_be(Is&& is) {
  for (const auto give_up = Clock::now() + 30s; Clock::now() < give_up;
       std::this_thread::sleep_for(10ms)) {
    if (is()) return true;
  }
  return false;
}

class RemoteTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVTIER_NEEDS_REDIS();
    redis_ = std::make_unique<RedisServer>();
    model_ = engine::test::TestModel::make_small();
  }
  // As JSON has it: "state": "online".
  static std::string remote_of(const DaemonProcess& daemon) {
    const std::string json =
        run(std::string(KVTIERCTL) + " --socket " + daemon.socket() + " status --json").output;
    const auto at = json.find("\"remote\"");
    return at == std::string::npos ? "" : json.substr(at);
  }
  static bool is(const DaemonProcess& daemon, const std::string& state) {
    return remote_of(daemon).find("\"state\": \"" + state + "\"") != std::string::npos;
  }
  static std::uint64_t figure(const DaemonProcess& daemon, const std::string& name) {
    const std::string remote = remote_of(daemon);
    const auto at = remote.find("\"" + name + "\": ");
    return at == std::string::npos ? 0 : std::stoull(remote.substr(at + name.size() + 4));
  }
  void start(DaemonProcess& daemon) {
    daemon.start();
    ASSERT_TRUE(comes_to_be([&] { return is(daemon, "online"); })) << remote_of(daemon);
  }
  // Ten blocks are there.
  void compute_on(DaemonProcess& daemon, StorageFormat format,
                  const engine::GenerateRequest& request) {
    EngineUnderTest engine(*model_, format, daemon.socket());
    engine.wait_connected();
    const auto before = figure(daemon, "blocks_written");
    (void)engine.answer(request);
    ASSERT_TRUE(engine.client().flush(soon()));
    ASSERT_TRUE(comes_to_be([&] { return figure(daemon, "blocks_written") >= before + 10; }))
        << remote_of(daemon);
  }

  std::unique_ptr<RedisServer> redis_;
  std::unique_ptr<engine::test::TestModel> model_;
};

TEST_F(RemoteTest, what_one_host_computed_another_takes_from_there_and_answers_the_same) {
  DaemonProcess a(of_host(*redis_)), b(of_host(*redis_));
  start(a);
  start(b);
  for (const StorageFormat format :
       {StorageFormat::fp8_e4m3, StorageFormat::bf16, StorageFormat::f32, StorageFormat::int8}) {
    const auto request = request_of(*model_, 7 + static_cast<std::uint64_t>(format), 8);
    compute_on(a, format, request);
    ReferenceEngine reference(*model_, format);
    EngineUnderTest on_b(*model_, format, b.socket());
    on_b.wait_connected();
    const auto result = on_b.answer(request);
    EXPECT_EQ(result.reused_by_tier[index_of(Tier::remote)], 160U) << name(format);
    EXPECT_EQ(result.tokens, reference.answer(request)) << name(format);
    const auto again = on_b.answer(request);
    EXPECT_EQ(again.reused_by_tier[index_of(Tier::host)], 160U);
    EXPECT_EQ(on_b.client().stats().remote_hits(), 10U);
  }
}

TEST_F(RemoteTest, another_namespace_never_meets) {
  DaemonProcess a(of_host(*redis_)), b(of_host(*redis_));
  start(a);
  start(b);
  const auto request = request_of(*model_, 3, 4);
  compute_on(a, StorageFormat::fp8_e4m3, request);
  EngineUnderTest other(*model_, StorageFormat::bf16, b.socket());
  other.wait_connected();
  EXPECT_EQ(other.answer(request).reused_tokens, 0U);
  EXPECT_EQ(figure(b, "found_blocks"), 0U);
  EXPECT_GT(figure(b, "lookups"), 0U);
}

TEST_F(RemoteTest, a_store_that_is_killed_and_comes_back_costs_hits_and_nothing_else) {
  DaemonProcess a(of_host(*redis_)), b(of_host(*redis_));
  start(a);
  start(b);
  ReferenceEngine reference(*model_, kFormat);
  EngineUnderTest on_b(*model_, kFormat, b.socket());
  on_b.wait_connected();
  const auto first = request_of(*model_, 11, 4), second = request_of(*model_, 12, 4);
  compute_on(a, kFormat, first);
  redis_->kill();
  EXPECT_EQ(on_b.answer(first).tokens, reference.answer(first));
  EXPECT_TRUE(comes_to_be([&] { return is(b, "offline"); })) << remote_of(b);
  EXPECT_EQ(on_b.answer(second).tokens, reference.answer(second));
  redis_->start();
  ASSERT_TRUE(comes_to_be([&] { return is(a, "online") && is(b, "online"); }));
  const auto third = request_of(*model_, 13, 4);
  compute_on(a, kFormat, third);
  const auto result = on_b.answer(third);
  EXPECT_EQ(result.reused_by_tier[index_of(Tier::remote)], 160U);
  EXPECT_EQ(result.tokens, reference.answer(third));
}

TEST_F(RemoteTest, a_store_that_stands_still_keeps_a_lookup_no_longer_than_its_time) {
  DaemonProcess a(of_host(*redis_)), b(of_host(*redis_, "lookup_timeout_ms = 20\n"));
  start(a);
  start(b);
  EngineUnderTest on_b(*model_, kFormat, b.socket());
  on_b.wait_connected();
  redis_->stop();
  Clock::duration longest{};
  for (std::uint64_t seed = 100; seed < 120; ++seed) {
    Prefix prefix = on_b.cache().prefix();
    ASSERT_TRUE(prefix.append(request_of(*model_, seed, 1).prompt));
    const auto began = Clock::now();
    EXPECT_EQ(on_b.cache().look_up(prefix, began + 10s).blocks, 0U);
    const auto lease = on_b.cache().lease(prefix, {0, prefix.blocks_matchable()}, began + 10s);
    ASSERT_TRUE(lease);
    EXPECT_EQ(lease->blocks(), 0U);
    longest = std::max(longest, Clock::now() - began);
  }
  // Its time, and what else a busy machine takes.
  EXPECT_LT(longest, 20ms + 200ms);
  redis_->go_on();
}

TEST_F(RemoteTest, what_was_dropped_is_gone_from_there_and_another_host_computes_it) {
  DaemonProcess a(of_host(*redis_)), b(of_host(*redis_));
  start(a);
  start(b);
  const auto request = request_of(*model_, 21, 4);
  compute_on(a, kFormat, request);
  a.drop({});
  ASSERT_TRUE(comes_to_be([&] { return figure(a, "blocks") == 0; })) << remote_of(a);
  ReferenceEngine reference(*model_, kFormat);
  EngineUnderTest on_b(*model_, kFormat, b.socket());
  on_b.wait_connected();
  const auto result = on_b.answer(request);
  EXPECT_EQ(result.reused_tokens, 0U);
  EXPECT_EQ(result.tokens, reference.answer(request));
}

TEST_F(RemoteTest, what_is_asked_for_goes_there_where_nothing_else_does) {
  DaemonOptions warm = of_host(*redis_);
  warm.more = "[remote]\nurl = '" + redis_->url() + "'\nadmission = 'warm'\n";
  DaemonProcess a(warm);
  start(a);
  EngineUnderTest on_a(*model_, kFormat, a.socket());
  on_a.wait_connected();
  (void)on_a.answer(request_of(*model_, 31, 1));
  ASSERT_TRUE(on_a.client().flush(soon()));
  EXPECT_EQ(figure(a, "blocks_written"), 0U);
  const auto pushed =
      run(std::string(KVTIERCTL) + " --socket " + a.socket() + " push --all --used 5m");
  EXPECT_EQ(pushed.exit_code, 0) << pushed.output;
  EXPECT_NE(pushed.output.find("10 blocks in the remote tier"), std::string::npos) << pushed.output;
}

}  // namespace
}  // namespace kvtier::e2e
