// A memory tier whose cap changes while it is in use.
#include "tests/daemon/test_cache.h"

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
  static constexpr std::uint64_t kExtent = 16 * kRecordBytes;

  TestCache cache;
  const std::uint16_t ns;
  std::vector<TestBlock> blocks;
};

TEST_F(ShrinkTest, a_lower_cap_is_reached_by_giving_whole_extents_back) {
  host().set_cap(kExtent);
  EXPECT_TRUE(cache->shrink());
  EXPECT_EQ(host().reserved_bytes(), kExtent);
  EXPECT_EQ(cache->catalogue().counts(Tier::host).blocks, 16U);
  EXPECT_EQ(cache->catalogue().counts(Tier::host).evictions(), 16U);
  EXPECT_FALSE(cache->shrink());
  // What left memory is on disk, and the tier takes new blocks within its cap.
  EXPECT_EQ(cache->catalogue().counts(Tier::disk).blocks, 32U);
  EXPECT_EQ(cache.put_all(ns, cache.prefix(ns, 4, 5000)), 4U);
  EXPECT_EQ(host().reserved_bytes(), kExtent);
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
  EXPECT_EQ(host().reserved_bytes(), 2 * kExtent);
  cache->release(1, grant.lease);
  EXPECT_TRUE(cache->shrink());
  EXPECT_FALSE(cache->shrink());
  EXPECT_EQ(host().reserved_bytes(), kExtent);
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
  EXPECT_EQ(host().reserved_bytes(), 4 * kExtent);
  EXPECT_EQ(cache->catalogue().counts(Tier::host).blocks, 64U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
