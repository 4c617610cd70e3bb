// Write-through: what waits, what is given up, and which slots come back.
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

class DiskWriteTest : public ::testing::Test {
 protected:
  explicit DiskWriteTest(const CacheSizes& sizes = {.write_queue_max = 6,
                                                    .writes_submitted_max = 2})
      : cache(sizes), ns(cache.open(small_namespace("m"))) {}

  bool complete_first(FakeStore::Fate fate) {
    const auto under_way = cache.store().under_way();
    if (!under_way.empty()) cache.store().complete(under_way[0], fate);
    return !under_way.empty();
  }

  TestCache cache;
  const std::uint16_t ns;
};

TEST_F(DiskWriteTest, writes_past_the_queue_are_dropped_and_counted) {
  const auto prefix = cache.prefix(ns, 8, 1);
  ASSERT_EQ(cache.put_all(ns, prefix), 8U);
  EXPECT_EQ(cache->disk().queued(), 6U);
  EXPECT_EQ(cache.store().under_way().size(), 2U);
  EXPECT_EQ(cache->disk().counts().dropped_writes, 2U);
  cache.store().complete_all();
  EXPECT_EQ(cache->catalogue().counts(Tier::disk).blocks, 6U);
}

TEST_F(DiskWriteTest, a_block_being_written_stays_in_the_host_tier_until_it_is_safe) {
  const auto block = cache.prefix(ns, 1, 1)[0];
  ASSERT_TRUE(cache.put(ns, block));
  EXPECT_EQ(cache->drop(ns, TierSet{}.with(Tier::host)), 0U);
  cache.store().complete_all();
  EXPECT_EQ(cache->drop(ns, TierSet{}.with(Tier::host)), 1U);
}

TEST_F(DiskWriteTest, a_flush_waits_for_every_earlier_commit_and_for_no_later_one) {
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 2, 1)), 2U);
  bool done = false;
  cache->flush([&](const Result<void>& result) { done = result.has_value(); });
  ASSERT_TRUE(cache.put(ns, cache.prefix(ns, 1, 900)[0]));
  auto under_way = cache.store().under_way();
  cache.store().complete(under_way[1]);
  EXPECT_FALSE(done);
  cache.store().complete(under_way[0]);
  for (const auto operation : cache.store().under_way()) {
    if (cache.store().what(operation) == FakeStore::Asked::What::flush)
      cache.store().complete(operation);
  }
  EXPECT_TRUE(done);
  EXPECT_EQ(cache->disk().queued(), 1U);
}

TEST_F(DiskWriteTest, a_block_that_a_failed_sync_left_in_doubt_is_written_again) {
  const auto blocks = cache.prefix(ns, 2, 1);
  ASSERT_EQ(cache.put_all(ns, blocks), 2U);
  cache.store().complete_all();
  cache.store()[0].give_up(blocks[1].key());
  EXPECT_FALSE(cache.tiers(blocks[1]).has(Tier::disk));
  EXPECT_TRUE(cache.tiers(blocks[0]).has(Tier::disk));
  cache.store().complete_all();
  EXPECT_TRUE(cache.tiers(blocks[1]).has(Tier::disk));
  EXPECT_TRUE(cache.store().indexed(blocks[1].key()));
}

TEST_F(DiskWriteTest, one_that_is_nowhere_else_is_forgotten) {
  const auto blocks = cache.prefix(ns, 2, 1);
  cache.put_on_disk(ns, blocks);
  cache.store()[0].give_up(blocks[1].key());
  EXPECT_EQ(cache.find(blocks[1].key()), nullptr);
  cache.store().complete_all();
  EXPECT_EQ(cache->disk().devices()[0]->space().bytes_in_use(), kRecordBytes);
}

TEST_F(DiskWriteTest, one_that_is_being_read_goes_when_it_has_been) {
  const auto block = cache.prefix(ns, 1, 1);
  cache.put_on_disk(ns, block);
  const auto grant = cache.lease(ns, block);
  cache.store()[0].give_up(block[0].key());
  cache.store().complete_all();
  cache->release(1, grant.lease);
  cache.store().complete_all();
  EXPECT_EQ(cache.find(block[0].key()), nullptr);
  EXPECT_EQ(cache->disk().devices()[0]->space().bytes_in_use(), 0U);
}

TEST_F(DiskWriteTest, a_write_that_is_given_up_before_it_is_settled_counts_as_cut_off) {
  const auto blocks = cache.prefix(ns, 2, 1);
  ASSERT_EQ(cache.put_all(ns, blocks), 2U);
  const auto under_way = cache.store().under_way();
  cache.store().complete(under_way[1]);
  cache.store()[0].give_up(blocks[1].key());
  cache.store().complete_all();
  EXPECT_TRUE(cache.tiers(blocks[0]).has(Tier::disk));
  EXPECT_FALSE(cache.tiers(blocks[1]).has(Tier::disk));
  EXPECT_EQ(cache->disk().counts().dropped_writes, 1U);
  EXPECT_EQ(cache->disk().devices()[0]->space().bytes_in_use(), kRecordBytes);
}

class SmallDiskTest : public DiskWriteTest {
 protected:
  SmallDiskTest() : DiskWriteTest({.disk_slots = 4, .segment_slots = 4}) {}
};

// Every write that a full index refused took a good slot with it, until no slot was left.
TEST_F(SmallDiskTest, a_write_that_the_store_refuses_later_costs_no_slot) {
  for (Token first = 1; first < 9000; first += 1000) {
    ASSERT_TRUE(cache.put(ns, cache.prefix(ns, 1, first)[0]));
    ASSERT_TRUE(complete_first(FakeStore::Fate::corrupt));
    cache.store().complete_all();
  }
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 4, 70000)), 4U);
  cache.store().complete_all();
  EXPECT_EQ(cache->catalogue().counts(Tier::disk).blocks, 4U);
  // Over others' slots as well.
  ASSERT_TRUE(cache.put(ns, cache.prefix(ns, 1, 80000)[0]));
  ASSERT_TRUE(complete_first(FakeStore::Fate::corrupt));
  cache.store().complete_all();
  ASSERT_TRUE(cache.put(ns, cache.prefix(ns, 1, 90000)[0]));
  cache.store().complete_all();
  EXPECT_EQ(cache->catalogue().counts(Tier::disk).blocks, 4U);
  EXPECT_EQ(cache.store().records(), 4U);
}

// Its end took the places of its own begin.
TEST_F(SmallDiskTest, of_a_prompt_that_is_larger_than_the_disk_the_begin_is_kept) {
  const auto prompt = cache.prefix(ns, 9, 1);
  for (const TestBlock& block : prompt) {
    ASSERT_TRUE(cache.put(ns, block));
    cache.store().complete_all();
  }
  for (std::size_t i = 0; i < prompt.size(); ++i)
    EXPECT_EQ(cache.tiers(prompt[i]).has(Tier::disk), i < 4) << i;
  // Another one is used later.
  const auto other = cache.prefix(ns, 2, 900);
  ASSERT_EQ(cache.put_all(ns, other), 2U);
  cache.store().complete_all();
  EXPECT_TRUE(cache.tiers(other[1]).has(Tier::disk));
  EXPECT_TRUE(cache.tiers(prompt[1]).has(Tier::disk));
  EXPECT_FALSE(cache.tiers(prompt[2]).has(Tier::disk));
}

// Each write that a full index refused had evicted a block.
TEST_F(SmallDiskTest, nothing_goes_for_a_block_that_a_full_index_would_refuse) {
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 4, 1)), 4U);
  cache.store().complete_all();
  cache.store()[0].full = true;
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 2, 900)), 2U);
  cache.store().complete_all();
  EXPECT_EQ(cache->catalogue().counts(Tier::disk).blocks, 4U);
  EXPECT_EQ(cache->catalogue().counts(Tier::disk).evictions(), 0U);
  EXPECT_EQ(cache->disk().counts().drops[static_cast<std::size_t>(WriteDrop::no_room)], 2U);
  cache.store()[0].full = false;
  const auto again = cache.prefix(ns, 2, 900);
  cache->release(1, cache.lease(ns, again).lease);
  cache.store().complete_all();
  EXPECT_TRUE(cache.tiers(again[1]).has(Tier::disk));
}

TEST_F(SmallDiskTest, a_slot_that_failed_a_write_is_not_used_again) {
  for (Token first = 1; first < 4000; first += 1000) {
    ASSERT_TRUE(cache.put(ns, cache.prefix(ns, 1, first)[0]));
    ASSERT_TRUE(complete_first(FakeStore::Fate::io));
  }
  ASSERT_TRUE(cache.put(ns, cache.prefix(ns, 1, 5000)[0]));
  cache.store().complete_all();
  EXPECT_EQ(cache->disk().counts().failures, 4U);
  EXPECT_EQ(cache->catalogue().counts(Tier::disk).blocks, 0U);
}

TEST_F(SmallDiskTest, a_write_refused_at_once_gives_its_victims_slot_back) {
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 4, 1)), 4U);
  cache.store().complete_all();
  cache.store().refuse_next = true;
  ASSERT_TRUE(cache.put(ns, cache.prefix(ns, 1, 900)[0]));
  cache.store().complete_all();
  EXPECT_EQ(cache->catalogue().counts(Tier::disk).blocks, 3U);
  ASSERT_TRUE(cache.put(ns, cache.prefix(ns, 1, 800)[0]));
  cache.store().complete_all();
  EXPECT_EQ(cache->catalogue().counts(Tier::disk).blocks, 4U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
