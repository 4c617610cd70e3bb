// Leases, commits and the blocks under them, one rule a test.
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

class BlockCacheTest : public ::testing::Test {
 protected:
  explicit BlockCacheTest(const CacheSizes& sizes = {})
      : cache(sizes), ns(cache.open(small_namespace("m"))) {}

  TestCache cache;
  const std::uint16_t ns;
  static constexpr TierSet kDevice{1}, kHost{2}, kDisk{4};
};

TEST_F(BlockCacheTest, the_longest_cached_prefix_is_leased_and_says_where_it_lies) {
  const auto prefix = cache.prefix(ns, 5, 1);
  ASSERT_EQ(cache.put_all(ns, std::span(prefix).first(3)), 3U);
  const auto grant = cache.lease(ns, prefix);
  ASSERT_EQ(grant.slots.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(grant.tiers[i], Tier::host);
    EXPECT_TRUE(record_is(cache.record(grant.slots[i]), cache.known(ns).layout, prefix[i]));
  }
  EXPECT_EQ(cache.lease(ns, cache.prefix(ns, 2, 900)).lease, 0U);
}

TEST_F(BlockCacheTest, the_tail_of_a_prefix_is_evicted_before_its_head) {
  const auto prefix = cache.prefix(ns, 40, 1);
  ASSERT_EQ(cache.put_all(ns, prefix), 40U);
  cache.store().complete_all();
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 10, 5000)), 10U);
  for (std::size_t i = 0; i < 40; ++i)
    EXPECT_EQ(cache.tiers(prefix[i]).has(Tier::host), i < 30) << i;
}

TEST_F(BlockCacheTest, a_leased_block_is_never_evicted) {
  const auto held = cache.prefix(ns, 20, 1);
  ASSERT_EQ(cache.put_all(ns, held), 20U);
  cache.store().complete_all();
  const auto grant = cache.lease(ns, held);
  for (Token first = 1000; first < 9000; first += 1000) {
    cache.put_all(ns, cache.prefix(ns, 10, first));
    cache.store().complete_all();
  }
  for (std::size_t i = 0; i < held.size(); ++i) {
    EXPECT_TRUE(record_is(cache.record(grant.slots[i]), cache.known(ns).layout, held[i]));
  }
  EXPECT_EQ(cache->drop(std::nullopt, kHost), 20U);
  EXPECT_TRUE(cache->release(1, grant.lease));
  EXPECT_EQ(cache->drop(std::nullopt, kHost), 20U);
}

TEST_F(BlockCacheTest, a_commit_whose_key_is_not_of_its_tokens_is_refused_and_its_slot_freed) {
  auto block = cache.prefix(ns, 1, 1)[0];
  block.identity.key.bytes[0] ^= std::byte{1};
  EXPECT_FALSE(cache.put(ns, block));
  EXPECT_EQ(cache->counts().refused_commits, 1U);
  EXPECT_EQ(cache->memory(Tier::host).used_bytes(), 0U);
  EXPECT_EQ(cache->catalogue().size(), 0U);
}

TEST_F(BlockCacheTest, a_commit_whose_record_holds_other_tokens_is_refused_and_its_slot_freed) {
  const auto prefix = cache.prefix(ns, 1, 1);
  const auto slots = cache->reserve(1, TestCache::kWriter, ns, Tier::host, 2);
  fill_record(cache.record(slots[0]), cache.known(ns).layout, prefix[0]);
  cache.record(slots[0])[sizeof(RecordHeader)] ^= std::byte{1};
  EXPECT_FALSE(cache.commit(ns, prefix[0], std::span(slots).first(1)));
  EXPECT_FALSE(cache.commit(ns, prefix[0], std::span(slots).last(1)));  // never filled
  EXPECT_EQ(cache->counts().refused_commits, 2U);
  EXPECT_EQ(cache->memory(Tier::host).used_bytes(), 0U);
}

TEST_F(BlockCacheTest, a_slot_of_another_session_cannot_be_committed_or_abandoned) {
  const auto block = cache.prefix(ns, 1, 1)[0];
  const auto slots = cache->reserve(1, TestCache::kWriter, ns, Tier::host, 1);
  fill_record(cache.record(slots[0]), cache.known(ns).layout, block);
  EXPECT_FALSE(cache.commit(ns, block, slots, 2));
  cache->abandon(2, slots[0]);
  EXPECT_EQ(cache->reservations().reserved(), 1U);
  EXPECT_TRUE(cache.commit(ns, block, slots, 1));
}

TEST_F(BlockCacheTest, the_second_writer_of_a_key_loses_quietly) {
  const auto block = cache.prefix(ns, 1, 1)[0];
  ASSERT_TRUE(cache.put(ns, block));
  const auto used = cache->memory(Tier::host).used_bytes();
  EXPECT_FALSE(cache.put(ns, block, Tier::host, 2));
  EXPECT_EQ(cache->counts().refused_commits, 0U);
  EXPECT_EQ(cache->memory(Tier::host).used_bytes(), used);
}

TEST_F(BlockCacheTest, a_device_copy_of_a_host_block_adds_a_tier) {
  const auto block = cache.prefix(ns, 1, 1)[0];
  ASSERT_TRUE(cache.put(ns, block));
  cache.store().complete_all();
  EXPECT_TRUE(cache.put(ns, block, Tier::device));
  EXPECT_EQ(cache.tiers(block).bits, kDevice.bits | kHost.bits | kDisk.bits);
  EXPECT_EQ(cache.directory().find(block.key()), cache.tiers(block));
  EXPECT_EQ(cache.lease(ns, std::span(&block, 1)).tiers[0], Tier::device);
}

TEST_F(BlockCacheTest, a_removed_block_is_found_no_more_and_goes_with_its_last_lease) {
  const auto prefix = cache.prefix(ns, 2, 1);
  ASSERT_EQ(cache.put_all(ns, prefix), 2U);
  cache.store().complete_all();
  const auto first = cache.lease(ns, prefix);
  const auto second = cache.lease(ns, prefix);
  cache.remove(ns, prefix[1].key());
  EXPECT_TRUE(cache.directory().find(prefix[1].key()).empty());
  EXPECT_EQ(cache.lease(ns, prefix, 7).slots.size(), 1U);
  cache->release(1, first.lease);
  EXPECT_NE(cache.find(prefix[1].key()), nullptr);
  cache->release(1, second.lease);
  EXPECT_EQ(cache.find(prefix[1].key()), nullptr);
  cache.store().complete_all();
  EXPECT_FALSE(cache.store().indexed(prefix[1].key()));
}

TEST_F(BlockCacheTest, two_leases_share_one_disk_read) {
  const auto prefix = cache.prefix(ns, 2, 1);
  cache.put_on_disk(ns, prefix);
  cache.store().take_asked();
  const auto one = cache.lease(ns, prefix, 1);
  const auto two = cache.lease(ns, prefix, 2);
  EXPECT_EQ(one.slots, (std::vector<SlotName>{0, 0}));
  EXPECT_EQ(two.slots, one.slots);
  EXPECT_EQ(cache.store().take_asked().size(), 2U);
  cache.store().complete_all();
  ASSERT_EQ(cache.ready.size(), 4U);
  EXPECT_EQ(cache.ready[0].slot, cache.ready[1].slot);
  EXPECT_TRUE(record_is(cache.record(cache.ready[0].slot), cache.known(ns).layout, prefix[0]));
  EXPECT_EQ(cache.find(prefix[0].key())->holds[index_of(Tier::host)], 2U);
}

TEST_F(BlockCacheTest, a_corrupt_disk_read_fails_the_block_of_every_lease_and_forgets_the_key) {
  const auto prefix = cache.prefix(ns, 2, 1);
  cache.put_on_disk(ns, prefix);
  cache.store().spoil(prefix[1].key());
  const auto one = cache.lease(ns, prefix, 1);
  const auto two = cache.lease(ns, prefix, 2);
  cache.store().complete_all();
  ASSERT_EQ(cache.ready.size(), 4U);
  EXPECT_EQ(cache.ready[2], (Ready{1, one.lease, 1, 0}));
  EXPECT_EQ(cache.ready[3], (Ready{2, two.lease, 1, 0}));
  EXPECT_EQ(cache.find(prefix[1].key()), nullptr);
  EXPECT_TRUE(cache.directory().find(prefix[1].key()).empty());
  EXPECT_FALSE(cache.store().indexed(prefix[1].key()));
  EXPECT_EQ(cache->memory(Tier::host).used_bytes(), kRecordBytes);
}

// The block stayed in the host tier, found by nobody and never removed.
TEST_F(BlockCacheTest, a_block_removed_while_its_failing_read_is_under_way_leaves_no_copy_behind) {
  const auto block = cache.prefix(ns, 1, 1)[0];
  cache.put_on_disk(ns, std::span(&block, 1));
  cache.lease(ns, std::span(&block, 1));
  ASSERT_TRUE(cache.put(ns, block, Tier::host, 2));
  cache.remove(ns, block.key());
  cache->release_all(1);
  ASSERT_EQ(cache.store().under_way().size(), 1U);
  cache.store().complete(cache.store().under_way()[0], FakeStore::Fate::corrupt);
  cache.store().complete_all();
  EXPECT_EQ(cache.find(block.key()), nullptr);
  EXPECT_EQ(cache->memory(Tier::host).used_bytes(), 0U);
}

// A lease given up while its reads were under way left its blocks in the order the disk finished
// them.
TEST_F(BlockCacheTest, reads_that_land_in_any_order_after_the_release_keep_tails_behind_heads) {
  const auto prefix = cache.prefix(ns, 3, 1);
  cache.put_on_disk(ns, prefix);
  cache->release(1, cache.lease(ns, prefix).lease);
  const auto reads = cache.store().under_way();
  ASSERT_EQ(reads.size(), 3U);
  for (const std::size_t i : {0, 2, 1}) cache.store().complete(reads[i]);
  EXPECT_EQ(cache.order(Tier::host, kRecordBytes), keys_of(prefix));
  EXPECT_EQ(cache.order(Tier::disk, kRecordBytes), keys_of(prefix));
  EXPECT_EQ(cache->leases(), 0U);
  EXPECT_TRUE(cache.ready.empty());
}

TEST_F(BlockCacheTest, a_lease_released_twice_is_counted_and_changes_nothing) {
  const auto prefix = cache.prefix(ns, 1, 1);
  ASSERT_EQ(cache.put_all(ns, prefix), 1U);
  cache.store().complete_all();
  const auto grant = cache.lease(ns, prefix);
  EXPECT_FALSE(cache->release(2, grant.lease));
  EXPECT_TRUE(cache->release(1, grant.lease));
  EXPECT_FALSE(cache->release(1, grant.lease));
  EXPECT_EQ(cache->counts().unknown_releases, 2U);
  EXPECT_EQ(cache.find(prefix[0].key())->holds[index_of(Tier::host)], 0U);
}

TEST_F(BlockCacheTest, a_session_gets_no_lease_past_its_bound) {
  const auto prefix = cache.prefix(ns, 1, 1);
  ASSERT_EQ(cache.put_all(ns, prefix), 1U);
  for (std::uint32_t i = 0; i < 4096; ++i) ASSERT_NE(cache.lease(ns, prefix).lease, 0U);
  EXPECT_EQ(cache.lease(ns, prefix).lease, 0U);
  EXPECT_NE(cache.lease(ns, prefix, 2).lease, 0U);
  cache->end_session(1);
  cache->end_session(2);
  EXPECT_EQ(cache->leases(), 0U);
}

TEST_F(BlockCacheTest, a_restart_gives_the_disk_blocks_back_in_their_order) {
  const auto old = cache.prefix(ns, 3, 1);
  const auto fresh = cache.prefix(ns, 3, 500);
  cache.put_on_disk(ns, old);
  ASSERT_EQ(cache.put_all(ns, fresh), 3U);
  cache.store().complete_all();
  cache->release(1, cache.lease(ns, fresh).lease);
  cache->disk().write_stamps();

  DirectoryWriter directory = DirectoryWriter::create(400, std::array<std::byte, 16>{}).value();
  const auto host = storage::make_memfd_extents(Tier::host, {});
  BlockCache::Options options;
  options.blocks_max = 400;
  options.host = {40 * kRecordBytes, 16 * kRecordBytes};
  options.disk.segment_bytes = 4096 + 16 * kRecordBytes;
  options.disk.segments_bytes = 6 * options.disk.segment_bytes;
  BlockCache again(options, {{}, host.get(), TestCache::ports(cache.store()), &directory});
  ASSERT_TRUE(again.recover());
  EXPECT_EQ(again.catalogue().size(), 6U);
  EXPECT_EQ(again.catalogue().block(again.catalogue().oldest(Tier::disk)).key, old[2].key());
  for (const auto& block : fresh) EXPECT_EQ(directory.find(block.key()), kDisk);
}

}  // namespace
}  // namespace kvtier::daemon::testing
