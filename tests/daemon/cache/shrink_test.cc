// A memory tier whose cap changes while it is in use.
#include <deque>

#include "daemon/limits.h"
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

class ShrinkTest : public ::testing::Test {
 protected:
  // Two extents of 16 slots, full.
  ShrinkTest() : cache(sizes()), ns(cache.open(small_namespace("m"))) {
    blocks = cache.prefix(ns, 32, 1);
    EXPECT_EQ(cache.put_all(ns, blocks), 32U);
    cache.store().complete_all();
  }
  static CacheSizes sizes() {
    CacheSizes sizes;
    sizes.host_slots = 32;
    return sizes;
  }
  MemoryTier& host() { return cache->memory(Tier::host); }
  // Each is on disk, and so nobody's, before the next comes.
  void put_each(std::size_t count, Token first) {
    for (const TestBlock& block : cache.prefix(ns, count, first)) {
      EXPECT_TRUE(cache.put(ns, block));
      cache.store().complete_all();
    }
  }
  static constexpr std::uint64_t kExtent = 16 * kRecordBytes;

  TestCache cache;
  const std::uint16_t ns;
  std::vector<TestBlock> blocks;
};

TEST_F(ShrinkTest, a_lower_cap_is_reached_by_giving_whole_extents_back) {
  host().set_cap(kExtent);
  EXPECT_TRUE(cache->shrink());
  EXPECT_EQ(host().taken_bytes(), kExtent);
  EXPECT_EQ(cache->catalogue().counts(Tier::host).blocks, 16U);
  EXPECT_EQ(cache->catalogue().counts(Tier::host).evictions(), 16U);
  EXPECT_FALSE(cache->shrink());
  // What left memory is on disk, and the tier takes new blocks within its cap.
  EXPECT_EQ(cache->catalogue().counts(Tier::disk).blocks, 32U);
  EXPECT_EQ(cache.put_all(ns, cache.prefix(ns, 4, 5000)), 4U);
  EXPECT_EQ(host().taken_bytes(), kExtent);
}

TEST_F(ShrinkTest, the_extent_with_the_fewest_held_blocks_goes) {
  std::vector<TestBlock> few(blocks.begin(), blocks.begin() + 3);
  const auto in = cache.find(few[0].key())->places[index_of(Tier::host)].container;
  const auto grant = cache.lease(ns, few);
  host().set_cap(kExtent);
  EXPECT_TRUE(cache->shrink());
  EXPECT_FALSE(cache->shrink());
  EXPECT_NE(host().extent(storage::ExtentId(in)), nullptr);
  for (const auto& block : few) EXPECT_TRUE(cache.tiers(block).has(Tier::host));
  cache->release(1, grant.lease);
}

TEST_F(ShrinkTest, held_blocks_stay_and_their_extent_goes_once_they_are_let_go) {
  const auto grant = cache.lease(ns, blocks);
  host().set_cap(kExtent);
  EXPECT_TRUE(cache->shrink());
  EXPECT_EQ(cache->catalogue().counts(Tier::host).blocks, 32U);
  EXPECT_EQ(host().taken_bytes(), 2 * kExtent);
  cache->release(1, grant.lease);
  EXPECT_TRUE(cache->shrink());
  EXPECT_FALSE(cache->shrink());
  EXPECT_EQ(host().taken_bytes(), kExtent);
}

TEST_F(ShrinkTest, slots_of_an_extent_that_is_to_go_are_given_to_nobody) {
  const auto reserved = cache->reserve(1, TestCache::kWriter, ns, Tier::host, 1);
  ASSERT_EQ(reserved.size(), 1U);
  const auto grant = cache.lease(ns, blocks);
  host().set_cap(kExtent);
  EXPECT_TRUE(cache->shrink());
  const auto going = host().draining();
  ASSERT_TRUE(going);
  cache->release(1, grant.lease);
  for (const SlotName slot : cache->reserve(2, {101, 1}, ns, Tier::host, 8))
    EXPECT_NE(place_named(slot).container, going->value);
  cache->abandon(1, reserved[0]);
  EXPECT_TRUE(cache->shrink());
  EXPECT_EQ(host().extent(*going), nullptr);
}

TEST_F(ShrinkTest, a_cap_raised_again_ends_it) {
  const auto grant = cache.lease(ns, blocks);
  host().set_cap(kExtent);
  EXPECT_TRUE(cache->shrink());
  host().set_cap(4 * kExtent);
  EXPECT_FALSE(cache->shrink());
  EXPECT_FALSE(host().draining());
  cache->release(1, grant.lease);
  EXPECT_EQ(cache.put_all(ns, cache.prefix(ns, 32, 5000)), 32U);
  EXPECT_EQ(host().taken_bytes(), 4 * kExtent);
  EXPECT_EQ(cache->catalogue().counts(Tier::host).blocks, 64U);
}

// Memory that a disk's thread still had was taken for given back, or waited for.
TEST_F(ShrinkTest, an_extent_counts_until_whoever_uses_it_still_has_let_go_of_it) {
  std::vector<std::pair<std::unique_ptr<storage::Extent>, std::function<void()>>> going;
  host().dispose = [&](std::unique_ptr<storage::Extent> extent, std::function<void()> gone) {
    going.emplace_back(std::move(extent), std::move(gone));
  };
  host().set_cap(4 * kExtent);
  put_each(32, 5000);
  ASSERT_EQ(host().taken_bytes(), 4 * kExtent);
  host().set_cap(kExtent);
  for (int extent = 0; extent < 3; ++extent) EXPECT_TRUE(cache->shrink());
  EXPECT_FALSE(cache->shrink()) << "enough is on its way";
  ASSERT_EQ(going.size(), 3U);
  EXPECT_EQ(host().taken_bytes(), 4 * kExtent);
  // One of them is not held against what comes, so that sizes can change at once; no more is.
  host().set_cap(4 * kExtent);
  put_each(40, 9000);
  EXPECT_EQ(host().taken_bytes(), 5 * kExtent);
  for (auto& [extent, gone] : going) {
    extent.reset();
    gone();
  }
  EXPECT_EQ(host().taken_bytes(), 2 * kExtent);
  put_each(40, 20'000);
  EXPECT_EQ(host().taken_bytes(), 4 * kExtent);
}

// All slots of the tier were looked at, and all of its extents evicted, in one turn.
TEST_F(ShrinkTest, a_cap_is_reached_an_extent_a_turn_and_each_says_whether_to_go_on) {
  host().set_cap(8 * kExtent);
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 96, 5000)), 96U);
  cache.store().complete_all();
  host().set_cap(2 * kExtent);
  std::size_t steps = 0;
  for (std::uint64_t before = host().taken_bytes(); cache->shrink(); ++steps) {
    EXPECT_TRUE(cache->shrink_goes_on());
    EXPECT_LE(before - host().taken_bytes(), kExtent);
    before = host().taken_bytes();
  }
  EXPECT_GE(steps, 5U);
  EXPECT_EQ(host().taken_bytes(), 2 * kExtent);
  EXPECT_FALSE(cache->shrink_goes_on());
}

// Letting go of all that a session had leased was one turn, however much it was.
TEST_F(ShrinkTest, leases_end_in_steps_where_there_are_many) {
  std::deque<std::function<void()>> turns;
  cache->later = [&](std::function<void()> task) { turns.push_back(std::move(task)); };
  const std::size_t leases = 2 * limits::kEndStep / blocks.size();
  for (std::size_t i = 0; i < leases; ++i) ASSERT_EQ(cache.lease(ns, blocks).slots.size(), 32U);
  const auto holds = [&] { return cache.find(blocks[0].key())->holds[index_of(Tier::host)]; };
  ASSERT_EQ(holds(), 1U) << "one of its user's";
  cache->release_all(1);
  EXPECT_EQ(holds(), 1U) << "there is more to end";
  EXPECT_FALSE(turns.empty());
  EXPECT_EQ(cache->leases(), 0U) << "nobody has them any more";
  while (!turns.empty()) {
    const auto task = std::move(turns.front());
    turns.pop_front();
    task();
  }
  EXPECT_EQ(holds(), 0U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
