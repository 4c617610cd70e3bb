// Blocks that come from disk ahead of the request that will need them.
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

using What = FakeStore::Asked::What;

constexpr Hint kPrefetch{HintKind::prefetch};

class PrefetchesTest : public ::testing::Test {
 protected:
  explicit PrefetchesTest(const CacheSizes& sizes = {})
      : cache(sizes), ns(cache.open(small_namespace("m"))) {}

  std::vector<TestBlock> on_disk(std::size_t blocks, Token first) {
    auto prefix = cache.prefix(ns, blocks, first);
    cache.put_on_disk(ns, prefix);
    return prefix;
  }
  std::size_t reads() {
    std::size_t found = 0;
    for (const auto operation : cache.store().under_way())
      found += cache.store().what(operation) == What::read ? 1 : 0;
    return found;
  }
  // The read of this block; 0: there is none.
  std::uint64_t read_of(const TestBlock& block) {
    for (const auto operation : cache.store().under_way()) {
      const auto& asked = cache.store().asked(operation);
      if (asked.what == What::read && asked.keys.at(0) == block.key()) return operation;
    }
    return 0;
  }
  std::size_t in_host(std::span<const TestBlock> blocks) {
    std::size_t found = 0;
    for (const auto& block : blocks) found += cache.tiers(block).has(Tier::host) ? 1 : 0;
    return found;
  }
  std::uint64_t count(HintOutcome outcome) { return cache.hints(HintKind::prefetch, outcome); }

  TestCache cache;
  const std::uint16_t ns;
};

TEST_F(PrefetchesTest, a_lease_after_it_finds_everything_in_the_host_tier) {
  const auto blocks = on_disk(10, 1);
  cache.hint(ns, blocks, kPrefetch);
  EXPECT_EQ(cache->hints().prefetching(), 10U);
  EXPECT_EQ(count(HintOutcome::taken), 0U) << "not known yet";
  cache.store().complete_all();
  EXPECT_EQ(cache->hints().prefetching(), 0U);
  EXPECT_EQ(count(HintOutcome::taken), 10U);
  const auto grant = cache.lease(ns, blocks);
  EXPECT_EQ(grant.tiers, std::vector(10, Tier::host));
  EXPECT_EQ(reads(), 0U);
  EXPECT_EQ(cache->catalogue().namespaces()[ns].lookups.looked_up(), 0U) << "no lookup of its own";
}

TEST_F(PrefetchesTest, a_lease_meanwhile_shares_its_reads) {
  const auto blocks = on_disk(10, 1);
  cache.hint(ns, blocks, kPrefetch);
  ASSERT_EQ(reads(), 10U);
  const auto grant = cache.lease(ns, blocks);
  EXPECT_EQ(reads(), 10U);
  cache.store().complete_all();
  EXPECT_EQ(cache.ready.size(), 10U);
  cache->release(1, grant.lease);
}

TEST_F(PrefetchesTest, holds_nothing_and_is_the_most_recently_used) {
  const auto blocks = on_disk(10, 1);
  const auto others = cache.prefix(ns, 30, 50'000);
  ASSERT_EQ(cache.put_all(ns, others), 30U);
  cache.store().complete_all();
  cache.hint(ns, blocks, kPrefetch);
  cache.store().complete_all();
  const auto order = cache.order(Tier::host, kRecordBytes);
  ASSERT_EQ(order.size(), 40U);
  EXPECT_EQ(std::vector(order.begin(), order.begin() + 10), keys_of(blocks));
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 30, 90'000)), 30U);
  cache.store().complete_all();
  EXPECT_EQ(in_host(blocks), 10U);
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 10, 95'000)), 10U);
  cache.store().complete_all();
  EXPECT_EQ(in_host(blocks), 0U);
}

TEST_F(PrefetchesTest, one_user_has_a_part_of_the_host_tier_on_its_way_at_most) {
  const auto blocks = on_disk(20, 1);
  cache.hint(ns, blocks, kPrefetch);
  EXPECT_EQ(cache->hints().prefetching(), 10U) << "a quarter of 40 slots";
  EXPECT_EQ(count(HintOutcome::budget), 10U);
  cache.hint(ns, blocks, kPrefetch);
  EXPECT_EQ(count(HintOutcome::already), 10U);
  EXPECT_EQ(count(HintOutcome::budget), 20U);
  cache.store().complete_all();
  cache.hint(ns, blocks, kPrefetch);
  EXPECT_EQ(count(HintOutcome::already), 20U) << "they are there";
  EXPECT_EQ(cache->hints().prefetching(), 10U) << "and there is room for the others";
  cache.store().complete_all();
  EXPECT_EQ(in_host(blocks), 20U);
}

TEST_F(PrefetchesTest, what_is_unknown_or_gone_by_then_costs_nothing) {
  const auto blocks = on_disk(4, 1);
  cache.hint(ns, cache.prefix(ns, 3, 70'000), kPrefetch);
  EXPECT_EQ(count(HintOutcome::absent), 3U);
  cache.hint(ns, blocks, kPrefetch);
  cache.store().spoil(blocks[3].key());
  cache.store().complete_all();
  EXPECT_EQ(count(HintOutcome::taken), 3U);
  EXPECT_EQ(count(HintOutcome::failed), 1U);
  EXPECT_EQ(cache->hints().prefetching(), 0U);
}

TEST_F(PrefetchesTest, of_an_invalidated_namespace_nothing_is_fetched) {
  const auto blocks = on_disk(4, 1);
  cache->catalogue().namespaces().close(ns);
  cache.hint(ns, blocks, kPrefetch);
  EXPECT_EQ(reads(), 0U);
  EXPECT_EQ(count(HintOutcome::absent), 4U);
}

class ManyPrefetchesTest : public PrefetchesTest {
 protected:
  ManyPrefetchesTest()
      : PrefetchesTest({.blocks_max = 2000,
                        .host_slots = 400,
                        .disk_slots = 800,
                        .extent_slots = 100,
                        .segment_slots = 100,
                        .write_queue_max = 400,
                        .writes_submitted_max = 400}) {}
};

TEST_F(ManyPrefetchesTest, a_few_are_read_at_a_time_and_leases_stand_behind_no_more) {
  const auto ahead = on_disk(100, 1), wanted = on_disk(10, 50'000);
  cache.hint(ns, ahead, kPrefetch);
  ASSERT_EQ(reads(), limits::kPrefetchReadsMax);
  const auto grant = cache.lease(ns, wanted);
  ASSERT_EQ(reads(), limits::kPrefetchReadsMax + 10U);
  for (int i = 0; i < 5; ++i) cache.store().complete(read_of(ahead[static_cast<std::size_t>(i)]));
  EXPECT_EQ(reads(), limits::kPrefetchReadsMax + 5U) << "none begins while a lease waits";
  for (const auto& block : wanted) cache.store().complete(read_of(block));
  EXPECT_EQ(reads(), limits::kPrefetchReadsMax) << "now they go on";
  cache.store().complete_all();
  EXPECT_EQ(in_host(ahead), 100U);
  cache->release(1, grant.lease);
}

TEST_F(ManyPrefetchesTest, one_is_read_at_a_time_while_leases_wait_without_end) {
  const auto wanted = on_disk(10, 50'000), ahead = on_disk(20, 1);
  const auto grant = cache.lease(ns, wanted);
  cache.hint(ns, ahead, kPrefetch);
  for (const auto& block : ahead) {
    EXPECT_EQ(reads(), 11U);
    ASSERT_NE(read_of(block), 0U);
    cache.store().complete(read_of(block));
  }
  EXPECT_EQ(in_host(ahead), 20U);
  cache->release(1, grant.lease);
  cache.store().complete_all();
}

}  // namespace
}  // namespace kvtier::daemon::testing
