// The device tier on several GPUs, and memory that the daemon cannot address.
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

constexpr TierSet kDevice = TierSet{}.with(Tier::device);
constexpr TierSet kHost = TierSet{}.with(Tier::host);

class GpusTest : public ::testing::Test {
 protected:
  explicit GpusTest(CacheSizes sizes = {.gpus = 3}) : cache(sizes, false) {}

  // The blocks in host memory, and on `gpu`.
  std::vector<TestBlock> put_on(std::uint32_t gpu, std::size_t blocks, Token first) {
    const auto prefix = cache.prefix(ns, blocks, first);
    for (const TestBlock& block : prefix) {
      EXPECT_TRUE(cache.put(ns, block));
      EXPECT_TRUE(cache.put(ns, block, Tier::device, 1, gpu));
    }
    return prefix;
  }
  TierSet seen(const Key& key, std::uint32_t gpu) {
    return DirectoryView::map(cache.directory().fd(), cache.directory().bytes(), gpu)
        .value()
        .find(key);
  }

  TestCache cache;
  const std::uint16_t ns = cache.open(small_namespace("m"));
};

TEST_F(GpusTest, a_block_is_leased_on_its_own_gpu_and_from_the_host_on_the_others) {
  const auto prefix = put_on(1, 2, 1);
  EXPECT_EQ(cache.lease(ns, prefix, 1, 1).tiers, (std::vector{Tier::device, Tier::device}));
  for (const std::uint32_t other : {0U, 2U, kNoDevice}) {
    const auto grant = cache.lease(ns, prefix, 1, other);
    EXPECT_EQ(grant.tiers, (std::vector{Tier::host, Tier::host}));
    for (const SlotName slot : grant.slots) EXPECT_FALSE(cache.record(slot).empty());
  }
}

TEST_F(GpusTest, the_directory_shows_each_client_what_it_would_get) {
  const auto prefix = put_on(1, 1, 1);
  EXPECT_EQ(seen(prefix[0].key(), 1).bits, kDevice.bits | kHost.bits);
  for (const std::uint32_t other : {0U, 2U, kNoDevice}) {
    EXPECT_EQ(seen(prefix[0].key(), other), kHost);
  }
}

TEST_F(GpusTest, a_block_that_is_on_another_gpu_alone_ends_the_prefix) {
  const auto prefix = put_on(1, 3, 1);
  cache->drop(ns, kHost);
  EXPECT_TRUE(seen(prefix[0].key(), 0).empty());
  EXPECT_TRUE(cache.lease(ns, prefix, 1, 0).slots.empty());
  EXPECT_EQ(cache.lease(ns, prefix, 1, 1).slots.size(), 3U);
}

TEST_F(GpusTest, slots_are_granted_on_the_sessions_gpu_alone) {
  for (const std::uint32_t gpu : {0U, 1U, 2U}) {
    const auto slots = cache->reserve(1, TestCache::kWriter, ns, Tier::device, 2, gpu);
    ASSERT_EQ(slots.size(), 2U);
    for (const SlotName slot : slots) {
      EXPECT_EQ(device_of(place_named(slot)), gpu);
      EXPECT_NE(cache->memory(Tier::device, gpu).extent(ExtentId(place_named(slot).container)),
                nullptr);
    }
  }
  EXPECT_TRUE(cache->reserve(1, TestCache::kWriter, ns, Tier::device, 2, kNoDevice).empty());
  EXPECT_EQ(cache->reserve(1, TestCache::kWriter, ns, Tier::host, 2, kNoDevice).size(), 2U);
}

TEST_F(GpusTest, a_process_reserves_its_share_of_each_gpu) {
  const auto on = [&](std::uint32_t gpu) {
    return cache->reserve(1, TestCache::kWriter, ns, Tier::device, 100, gpu).size();
  };
  EXPECT_EQ(on(0), 6U);
  EXPECT_EQ(on(1), 6U);
  EXPECT_EQ(on(0), 0U);
}

TEST_F(GpusTest, each_gpu_has_a_cap_and_an_eviction_order_of_its_own) {
  const auto stays = put_on(1, 4, 1);
  for (Token first = 1000; first < 1000 + 40 * 16; first += 16) put_on(0, 1, first);
  EXPECT_EQ(cache->memory(Tier::device, 0).blocks(), 24U);
  EXPECT_EQ(cache->memory(Tier::device, 0).taken_bytes(), 24 * kRecordBytes);
  EXPECT_EQ(cache->memory(Tier::device, 1).blocks(), 4U);
  EXPECT_EQ(cache->memory(Tier::device, 1).block_bytes(), 4 * kRecordBytes);
  EXPECT_EQ(cache->memory(Tier::device, 2).blocks(), 0U);
  EXPECT_EQ(cache.lease(ns, stays, 1, 1).tiers.size(), 4U);
  EXPECT_EQ(cache->catalogue().counts(Tier::device).evictions(), 16U);
}

TEST_F(GpusTest, a_touched_prefix_is_evicted_tail_first_on_every_gpu) {
  const auto prefix = cache.prefix(ns, 6, 1);
  for (std::size_t i = 0; i < prefix.size(); ++i) {
    ASSERT_TRUE(cache.put(ns, prefix[i]));
    ASSERT_TRUE(cache.put(ns, prefix[i], Tier::device, 1, static_cast<std::uint32_t>(i % 2)));
  }
  cache->release(1, cache.lease(ns, prefix, 1, 0).lease);
  for (const std::uint32_t gpu : {0U, 1U}) {
    const std::vector<Key> newest_first{prefix[gpu].key(), prefix[gpu + 2].key(),
                                        prefix[gpu + 4].key()};
    EXPECT_EQ(cache.order(Tier::device, kRecordBytes, gpu), newest_first);
  }
}

TEST_F(GpusTest, a_second_gpus_copy_is_not_kept) {
  const auto prefix = put_on(1, 1, 1);
  const auto used = cache->memory(Tier::device, 0).used_bytes();
  EXPECT_FALSE(cache.put(ns, prefix[0], Tier::device, 2, 0));
  EXPECT_EQ(cache->memory(Tier::device, 0).used_bytes(), used);
  EXPECT_EQ(cache->counts().refused_commits, 0U);
}

class HbmTest : public GpusTest {
 protected:
  HbmTest() : GpusTest({.gpus = 1, .hbm = true}) {}
};

TEST_F(HbmTest, a_slot_that_cannot_be_read_is_taken_only_for_a_block_that_is_elsewhere_too) {
  const auto block = cache.prefix(ns, 1, 1)[0];
  EXPECT_FALSE(cache.put(ns, block, Tier::device));
  EXPECT_EQ(cache->counts().refused_commits, 1U);
  EXPECT_EQ(cache->memory(Tier::device).used_bytes(), 0U);
  ASSERT_TRUE(cache.put(ns, block));
  EXPECT_TRUE(cache.put(ns, block, Tier::device));
  EXPECT_EQ(cache.tiers(block).bits, kDevice.bits | kHost.bits);
}

TEST_F(HbmTest, both_slots_of_one_commit_are_taken_and_the_hosts_is_read) {
  const auto block = cache.prefix(ns, 1, 1)[0];
  for (const bool good : {false, true}) {
    auto slots = cache->reserve(1, TestCache::kWriter, ns, Tier::host, 1);
    fill_record(cache.record(slots[0]), cache.known(ns).layout, block);
    if (!good) cache.record(slots[0])[0] ^= std::byte{1};
    slots.push_back(cache->reserve(1, TestCache::kWriter, ns, Tier::device, 1).at(0));
    EXPECT_EQ(cache.commit(ns, block, slots), good);
    EXPECT_EQ(cache.tiers(block).bits, good ? kDevice.bits | kHost.bits : 0);
  }
}

// Its bytes may differ in the last digits, and a restore from HBM from one from the host.
TEST_F(HbmTest, a_second_writers_device_copy_is_not_kept_beside_the_firsts_host_copy) {
  const auto block = cache.prefix(ns, 1, 1)[0];
  ASSERT_TRUE(cache.put(ns, block));
  auto slots = cache->reserve(2, TestCache::kWriter, ns, Tier::host, 1);
  fill_record(cache.record(slots[0]), cache.known(ns).layout, block);
  slots.push_back(cache->reserve(2, TestCache::kWriter, ns, Tier::device, 1).at(0));
  EXPECT_FALSE(cache.commit(ns, block, slots, 2));
  EXPECT_EQ(cache.tiers(block), kHost);
  EXPECT_EQ(cache->memory(Tier::device).used_bytes(), 0U);
  EXPECT_EQ(cache->reservations().reserved(), 0U);
}

TEST_F(HbmTest, a_block_stays_on_the_gpu_when_it_leaves_the_host) {
  const auto prefix = put_on(0, 3, 1);
  cache->drop(ns, kHost);
  for (const TestBlock& block : prefix) EXPECT_EQ(cache.tiers(block), kDevice);
  const auto grant = cache.lease(ns, prefix);
  EXPECT_EQ(grant.tiers.size(), 3U);
  for (const SlotName slot : grant.slots) EXPECT_TRUE(cache.record(slot).empty());
}

TEST_F(HbmTest, extents_are_of_whole_units_and_within_the_cap) {
  // 24 slots of two kinds, in units of 4 records.
  const auto wide = cache.open(small_namespace("w", true));
  EXPECT_EQ(cache->memory(Tier::device).slots_possible(kRecordBytes), 24U);
  EXPECT_EQ(cache->memory(Tier::device).slots_possible(kWideRecordBytes), 15U);
  ASSERT_EQ(cache->reserve(1, TestCache::kWriter, wide, Tier::device, 1).size(), 1U);
  // What the first extent has left holds 8; of its share this process has what 4 more take left.
  ASSERT_EQ(cache->reserve(1, TestCache::kWriter, ns, Tier::device, 8).size(), 4U);
  EXPECT_EQ(cache->memory(Tier::device).taken_bytes(), 24 * kRecordBytes);
}

TEST(MemoryTierTest, a_system_without_memory_is_not_asked_again_at_once) {
  HbmExtents extents;
  std::uint32_t asked = 0;
  MemoryTier tier(Tier::device, {24 * kRecordBytes, 8 * kRecordBytes}, &extents,
                  [&] { return ExtentId(++asked); });
  extents.fails = true;
  EXPECT_FALSE(tier.take(kRecordBytes));
  EXPECT_FALSE(tier.take(kRecordBytes));
  EXPECT_EQ(asked, 1U);
  EXPECT_EQ(tier.taken_bytes(), 0U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
