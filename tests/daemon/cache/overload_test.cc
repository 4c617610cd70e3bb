// Writes come faster than the disk takes them: what goes to disk is of use there, and what is left
// out is told, and goes when it is used again.
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

class OverloadTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kPrompts = 10, kBlocks = 100, kQueueMax = 128;

  OverloadTest()
      : cache_({.blocks_max = 3000,
                .host_slots = 1200,
                .disk_slots = 1600,
                .write_queue_max = kQueueMax,
                .writes_submitted_max = 16}),
        ns_(cache_.open(small_namespace("m"))) {
    for (std::uint32_t n = 0; n < kPrompts; ++n)
      prompts_.push_back(cache_.prefix(ns_, kBlocks, 1 + n * 10'000));
  }

  // One more commit; the disk then ends as many writes as its share of the commits is.
  void commit(const TestBlock& block, double share) {
    ASSERT_TRUE(cache_.put(ns_, block));
    for (owed_ += share; owed_ >= 1; --owed_) {
      const auto under_way = cache_.store().under_way();
      if (!under_way.empty()) cache_.store().complete(under_way[0]);
    }
  }
  void commit_side_by_side(double share) {
    for (std::uint32_t at = 0; at < kBlocks; ++at) {
      for (const auto& prompt : prompts_) ASSERT_NO_FATAL_FAILURE(commit(prompt[at], share));
    }
    cache_.store().complete_all();
  }
  void commit_one_after_the_other(double share) {
    for (const auto& prompt : prompts_) {
      for (const auto& block : prompt) ASSERT_NO_FATAL_FAILURE(commit(block, share));
    }
    cache_.store().complete_all();
  }

  std::uint64_t written() { return cache_->catalogue().counts(Tier::disk).blocks; }
  // Those that follow a prompt's begin without a hole.
  std::uint64_t usable() {
    std::uint64_t blocks = 0;
    for (const auto& prompt : prompts_) {
      const auto end = std::ranges::find_if_not(
          prompt, [&](const TestBlock& block) { return cache_.tiers(block).has(Tier::disk); });
      blocks += static_cast<std::uint64_t>(end - prompt.begin());
    }
    return blocks;
  }
  // And of prompts that are there from begin to end.
  std::uint64_t whole() {
    return static_cast<std::uint64_t>(std::ranges::count_if(prompts_, [&](const auto& prompt) {
      return std::ranges::all_of(
          prompt, [&](const TestBlock& block) { return cache_.tiers(block).has(Tier::disk); });
    }));
  }
  void expect_of_use(double share) {
    const double in_all = kPrompts * kBlocks;
    EXPECT_GE(static_cast<double>(usable()), 0.95 * static_cast<double>(written()));
    EXPECT_GE(static_cast<double>(written()), 0.9 * share * in_all) << "the disk was idle";
    EXPECT_LT(static_cast<double>(written()), in_all) << "nothing was left out";
    const LeftOut left = cache_->disk().left_out();
    EXPECT_EQ(left.blocks, kPrompts * kBlocks - written());
    EXPECT_EQ(left.in_memory, left.blocks);
  }

  TestCache cache_;
  const std::uint16_t ns_;
  std::vector<std::vector<TestBlock>> prompts_;
  double owed_ = 0;
};

// Of 2,314 blocks that were written 256 could be used.
TEST_F(OverloadTest, at_three_quarters_of_the_rate_what_is_written_can_be_used_as_prefixes) {
  ASSERT_NO_FATAL_FAILURE(commit_side_by_side(0.75));
  expect_of_use(0.75);
}

TEST_F(OverloadTest, at_half_of_the_rate_what_is_written_can_be_used_as_prefixes) {
  ASSERT_NO_FATAL_FAILURE(commit_side_by_side(0.5));
  expect_of_use(0.5);
}

TEST_F(OverloadTest, prompts_one_after_the_other_go_whole_or_not_at_all_but_for_some) {
  ASSERT_NO_FATAL_FAILURE(commit_one_after_the_other(0.5));
  expect_of_use(0.5);
  EXPECT_GE(whole(), 3U);
}

TEST_F(OverloadTest, what_was_left_out_goes_to_disk_when_it_is_used_again) {
  ASSERT_NO_FATAL_FAILURE(commit_side_by_side(0.5));
  ASSERT_GT(cache_->disk().left_out().blocks, 0U);
  // A lease takes as much along as the queue has room for.
  for (int use = 0; use < 2; ++use) {
    for (const auto& prompt : prompts_) {
      cache_->release(1, cache_.lease(ns_, prompt).lease);
      cache_.store().complete_all();
    }
  }
  EXPECT_EQ(usable(), std::uint64_t{kPrompts} * kBlocks);
  EXPECT_EQ(cache_->disk().left_out().blocks, 0U);
}

TEST_F(OverloadTest, while_the_queue_is_long_use_adds_nothing_to_it) {
  ASSERT_NO_FATAL_FAILURE(commit_side_by_side(0.5));
  for (std::uint32_t at = 0; at < kQueueMax; ++at) {
    if (cache_->disk().queued() * 2 >= kQueueMax) break;
    ASSERT_TRUE(cache_.put(ns_, cache_.prefix(ns_, 1, 500'000 + 100 * at)[0]));
  }
  const std::size_t queued = cache_->disk().queued();
  for (const auto& prompt : prompts_) cache_->release(1, cache_.lease(ns_, prompt).lease);
  EXPECT_EQ(cache_->disk().queued(), queued);
}

// A hole would end the prefix for all that comes behind it.
TEST_F(OverloadTest, a_block_whose_parent_is_nowhere_is_left_out) {
  ASSERT_TRUE(cache_.put(ns_, prompts_[0][1]));
  EXPECT_EQ(cache_->disk().queued(), 0U);
  EXPECT_EQ(cache_->disk().counts().drops[static_cast<std::size_t>(WriteDrop::parent)], 1U);
  ASSERT_TRUE(cache_.put(ns_, prompts_[0][0]));
  ASSERT_TRUE(cache_.put(ns_, prompts_[0][2]));
  cache_.store().complete_all();
  EXPECT_EQ(usable(), 3U) << "it goes along with the one behind it";
}

TEST_F(OverloadTest, a_slot_that_fails_a_write_costs_no_prompt) {
  ASSERT_EQ(cache_.put_all(ns_, std::span(prompts_[0]).first(8)), 8U);
  cache_.store().complete(cache_.store().under_way()[2], FakeStore::Fate::io);
  cache_.store().complete_all();
  EXPECT_EQ(usable(), 8U);
}

TEST_F(OverloadTest, what_is_behind_a_block_that_fails_for_good_is_not_kept) {
  ASSERT_EQ(cache_.put_all(ns_, std::span(prompts_[0]).first(8)), 8U);
  cache_.store().complete(cache_.store().under_way()[2], FakeStore::Fate::corrupt);
  cache_.store().complete_all();
  EXPECT_EQ(written(), 2U);
  EXPECT_EQ(usable(), 2U);
  EXPECT_EQ(cache_.store().records(), 2U);
  EXPECT_EQ(cache_->disk().left_out().blocks, 6U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
