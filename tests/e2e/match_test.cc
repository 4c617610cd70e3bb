#include <gtest/gtest.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/e2e/daemon_process.h"
#include "tests/e2e/engine_under_test.h"

namespace kvtier::e2e {
namespace {

class Match : public testing::Test {
 protected:
  Match() : model_(engine::test::TestModel::make_small()) {
    daemon_.start();
    engine_ = std::make_unique<EngineUnderTest>(*model_, kFormat, daemon_.socket());
    engine_->wait_connected();
    request_.prompt = engine::test::random_tokens(200, model_->config.vocab_size, 3);
    request_.tokens_max = 1;
    (void)engine_->answer(request_);
    KVTIER_CHECK(engine_->client().flush(Clock::now() + std::chrono::seconds(30)).has_value());
  }

  std::unique_ptr<engine::test::TestModel> model_;
  DaemonProcess daemon_;
  std::unique_ptr<EngineUnderTest> engine_;
  engine::GenerateRequest request_;
};

// In strict mode the kernel ends a thread at any system call but read, write and exit.
TEST_F(Match, a_hit_and_a_miss_make_no_system_call) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "TSan waits for ever for a thread that ends by itself";
#endif
  const auto unknown = engine::test::random_tokens(200, model_->config.vocab_size, 4);
  std::uint32_t hits = 0, misses = 0;
  std::atomic<bool> finished = false;
  std::thread strict([&] {
    ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    for (int i = 0; i < 100; ++i) {
      hits += engine_->cache().match(request_.prompt).blocks;
      misses += engine_->cache().match(unknown).blocks;
    }
    finished = true;
    ::syscall(SYS_exit, 0);  // without what a thread does at its end
  });
  strict.join();
  EXPECT_TRUE(finished) << "it made a system call";
  EXPECT_EQ(hits, 100U * 12);
  EXPECT_EQ(misses, 0U);
}

TEST_F(Match, it_counts_each_block_at_its_fastest_tier_and_never_the_last_tokens_block) {
  auto hit = engine_->cache().match(request_.prompt);
  EXPECT_EQ(hit.blocks, 12U);
  EXPECT_EQ(hit.per_tier[index_of(Tier::host)], 12U);
  EXPECT_EQ(engine_->cache().match(std::span(request_.prompt).first(192)).blocks, 11U);
  EXPECT_EQ(engine_->cache().match(std::span(request_.prompt).first(16)).blocks, 0U);
  EXPECT_EQ(engine_->cache().match({}).blocks, 0U);
  daemon_.drop(TierSet{}.with(Tier::host));
  hit = engine_->cache().match(request_.prompt);
  EXPECT_EQ(hit.per_tier[index_of(Tier::disk)], 12U);
}

}  // namespace
}  // namespace kvtier::e2e
