#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "tests/e2e/daemon_process.h"
#include "tests/e2e/engine_under_test.h"

namespace kvtier::e2e {
namespace {

using namespace std::chrono_literals;
constexpr auto kDeadline = 200ms;
// For the computation itself and a loaded machine; an unbounded wait would be far beyond it.
constexpr auto kSlack = 10s;

class Outage : public testing::Test {
 protected:
  Outage() : model_(engine::test::TestModel::make_small()), reference_(*model_, kFormat) {
    daemon_.start();
    engine_ = std::make_unique<EngineUnderTest>(*model_, kFormat, daemon_.socket());
    engine_->wait_connected();
    request_.prompt = engine::test::random_tokens(200, model_->config.vocab_size, 7);
    request_.tokens_max = 4;
    request_.cache_deadline = kDeadline;
  }

  void expect_right_answer_in_time(std::uint32_t* reused = nullptr) {
    const auto begin = Clock::now();
    const auto result = engine_->answer(request_);
    EXPECT_LT(Clock::now() - begin, kDeadline + kSlack);
    EXPECT_EQ(result.tokens, reference_.answer(request_));
    if (reused != nullptr) *reused = result.reused_tokens;
  }
  void fill() {
    expect_right_answer_in_time();
    ASSERT_TRUE(engine_->client().flush(Clock::now() + 30s).has_value());
  }

  std::unique_ptr<engine::test::TestModel> model_;
  ReferenceEngine reference_;
  DaemonProcess daemon_;
  std::unique_ptr<EngineUnderTest> engine_;
  engine::GenerateRequest request_;
};

TEST_F(Outage, requests_complete_with_the_daemon_stopped_and_hit_again_after_it_is_back) {
  fill();
  std::uint32_t reused = 0;
  daemon_.send(SIGTERM);
  expect_right_answer_in_time(&reused);
  EXPECT_EQ(reused, 0U);
  daemon_.start();
  engine_->wait_connected();
  expect_right_answer_in_time(&reused);
  EXPECT_EQ(reused, 192U);
}

TEST_F(Outage, requests_complete_with_the_daemon_hung) {
  fill();
  daemon_.send(SIGSTOP);
  for (int i = 0; i < 3; ++i) expect_right_answer_in_time();
  EXPECT_GT(engine_->client().stats().deadlines_missed, 0U);
  daemon_.send(SIGCONT);
  engine_->wait_connected();
  std::uint32_t reused = 0;
  const auto give_up = Clock::now() + 30s;
  while (reused != 192 && Clock::now() < give_up) expect_right_answer_in_time(&reused);
  EXPECT_EQ(reused, 192U);
}

TEST_F(Outage, a_daemon_killed_while_a_lease_waits_for_the_disk_ends_the_wait_at_once) {
  fill();
  daemon_.drop(TierSet{}.with(Tier::device).with(Tier::host));
  auto lease = engine_->cache().lease(request_.prompt, 12, Clock::now() + 10s);
  ASSERT_TRUE(lease.has_value());
  ASSERT_EQ(lease->blocks(), 12U);
  daemon_.send(SIGKILL);
  const auto begin = Clock::now();
  // All of them, if the disk was quicker than the signal; never a part.
  const std::uint32_t ready = lease->wait_ready(Clock::now() + 60s);
  EXPECT_LT(Clock::now() - begin, kSlack);
  EXPECT_TRUE(ready == 0 || ready == 12) << ready;
  while (lease->held() && Clock::now() - begin < kSlack) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(lease->held());
  EXPECT_EQ(lease->wait_ready(Clock::now() + 60s), 0U);
  expect_right_answer_in_time();
}

TEST_F(Outage, no_answer_changes_when_the_daemon_is_killed_at_any_moment_of_a_request) {
  fill();
  for (int i = 0; i < 40; ++i) {
    if (i % 2 == 0) daemon_.drop(TierSet{}.with(Tier::device).with(Tier::host));
    std::atomic<bool> begun{false};
    std::thread killer([&] {
      while (!begun) std::this_thread::yield();
      const auto at = Clock::now() + std::chrono::microseconds(i * 150);
      while (Clock::now() < at) std::this_thread::yield();
      daemon_.send(SIGKILL);
    });
    begun = true;
    expect_right_answer_in_time();
    killer.join();
    daemon_.start();
    engine_->wait_connected();
  }
}

TEST_F(Outage, no_answer_changes_when_the_daemon_hangs_at_any_moment_of_a_request) {
  fill();
  for (int i = 0; i < 20; ++i) {
    daemon_.drop(TierSet{}.with(Tier::device).with(Tier::host));
    std::atomic<bool> begun{false};
    std::thread stopper([&] {
      while (!begun) std::this_thread::yield();
      const auto at = Clock::now() + std::chrono::microseconds(i * 200);
      while (Clock::now() < at) std::this_thread::yield();
      daemon_.send(SIGSTOP);
    });
    begun = true;
    expect_right_answer_in_time();
    stopper.join();
    daemon_.send(SIGCONT);
    engine_->wait_connected();
  }
}

TEST_F(Outage, an_engine_that_never_met_a_daemon_computes) {
  daemon_.send(SIGTERM);
  engine_ = std::make_unique<EngineUnderTest>(*model_, kFormat, daemon_.socket());
  std::uint32_t reused = 1;
  expect_right_answer_in_time(&reused);
  EXPECT_EQ(reused, 0U);
}

}  // namespace
}  // namespace kvtier::e2e
