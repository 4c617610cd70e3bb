// Who is admitted to the queue for the disk, and what its members hold.
#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

class WriteThroughTest : public ::testing::Test {
 protected:
  explicit WriteThroughTest(Admission admission = Admission::all)
      : parts(CacheSizes{.write_queue_max = 2, .admission = admission}) {}
  std::uint32_t holds(BlockId id) const {
    return parts.catalogue.block(id).holds[index_of(Tier::host)];
  }
  bool owed(BlockId id) {
    const Place at = parts.catalogue.block(id).places[index_of(Tier::host)];
    return (parts.memory.host().table(at).entry(at.slot).flags & storage::kDiskOwed) != 0;
  }
  CacheParts parts;
  const std::uint16_t ns = parts.open(small_namespace("m"));
  const std::vector<TestBlock> blocks = parts.prefix(ns, 3, 1);
};

TEST_F(WriteThroughTest, a_block_in_the_queue_is_held_and_owed_until_it_is_written) {
  const BlockId id = parts.put(ns, blocks[0]);
  parts.disk.committed(id);
  EXPECT_EQ(holds(id), 1U);
  EXPECT_TRUE(owed(id));
  EXPECT_EQ(parts.disk.queued_bytes(), kRecordBytes);
  parts.stores.complete_all();
  EXPECT_EQ(holds(id), 0U);
  EXPECT_FALSE(owed(id));
  EXPECT_EQ(parts.disk.queued(), 0U);
  EXPECT_EQ(parts.tiers(blocks[0]), CacheParts::kHost.with(Tier::disk));
}

TEST_F(WriteThroughTest, what_does_not_fit_the_queue_is_dropped_and_counted) {
  for (const TestBlock& block : blocks) parts.disk.committed(parts.put(ns, block));
  EXPECT_EQ(parts.disk.queued(), 2U);
  EXPECT_EQ(parts.disk.counts().drops[static_cast<std::size_t>(WriteDrop::queue_full)], 1U);
}

TEST_F(WriteThroughTest, a_flush_ends_once_what_was_queued_before_it_is_settled) {
  parts.disk.committed(parts.put(ns, blocks[0]));
  bool done = false;
  parts.disk.flush([&](const Result<void>& result) { done = result.has_value(); });
  EXPECT_FALSE(done);
  parts.stores.complete_all();
  EXPECT_TRUE(done);
}

class SecondHitQueueTest : public WriteThroughTest {
 protected:
  SecondHitQueueTest() : WriteThroughTest(Admission::second_hit) {}
};

TEST_F(SecondHitQueueTest, a_block_is_written_when_it_is_seen_again) {
  const BlockId id = parts.put(ns, blocks[0]);
  parts.disk.committed(id);
  EXPECT_EQ(parts.disk.queued(), 0U);
  parts.disk.seen_again(id);
  EXPECT_EQ(parts.disk.queued(), 1U);
}

TEST_F(SecondHitQueueTest, one_that_is_not_in_the_host_tier_or_is_doomed_is_not) {
  const BlockId on_gpu = parts.put(ns, blocks[0], Tier::device);
  parts.disk.seen_again(on_gpu);
  const BlockId doomed = parts.put(ns, blocks[1]);
  parts.catalogue.doom(doomed);
  parts.disk.seen_again(doomed);
  EXPECT_EQ(parts.disk.queued(), 0U);
}

class ExpectedReuseTest : public WriteThroughTest {
 protected:
  ExpectedReuseTest() : WriteThroughTest(Admission::expected_reuse) {}
};

// Nothing has been learnt yet, so that every block may come again.
TEST_F(ExpectedReuseTest, a_block_is_written_behind_its_parent_alone) {
  const BlockId head = parts.put(ns, blocks[0]);
  const BlockId next = parts.put(ns, blocks[1]);
  parts.disk.committed(next);
  EXPECT_EQ(parts.disk.queued(), 0U);
  parts.disk.committed(head);
  EXPECT_EQ(parts.disk.queued(), 1U);
  parts.disk.seen_again(next);
  EXPECT_EQ(parts.disk.queued(), 2U);
}

// The threshold stayed where a budget had left it, and what was written before one came counted.
TEST_F(ExpectedReuseTest, a_budget_that_is_taken_away_leaves_nothing_behind) {
  const auto chance_min = [&] { return parts.disk.write_chance_min(); };
  std::uint32_t now = 1;
  const auto pass = [&](int seconds) {
    while (seconds-- > 0) parts.disk.pass_time(++now);
  };
  parts.disk.committed(parts.put(ns, blocks[0]));
  pass(2);
  parts.disk.set_write_budget(1);
  pass(1);
  EXPECT_EQ(chance_min(), WriteBudget::kChanceMin);
  parts.disk.committed(parts.put(ns, blocks[1]));
  pass(1);
  EXPECT_GT(chance_min(), WriteBudget::kChanceMin);
  parts.disk.set_write_budget(0);
  pass(1);
  EXPECT_EQ(chance_min(), WriteBudget::kChanceMin);
}

// Leases went by the admission that the daemon had started with.
TEST(WriteThrough, an_admission_that_changes_to_second_hit_holds_for_leases) {
  TestCache cache;
  const auto ns = cache.open(small_namespace("m"));
  const auto prefix = cache.prefix(ns, 1, 1);
  cache->disk().set_admission(Admission::second_hit);
  ASSERT_TRUE(cache.put(ns, prefix[0]));
  EXPECT_EQ(cache->disk().queued(), 0U);
  cache.lease(ns, prefix);
  EXPECT_EQ(cache->disk().queued(), 1U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
