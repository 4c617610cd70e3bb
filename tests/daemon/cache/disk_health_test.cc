// Several disks: which gets a block, and what becomes of the blocks of one that goes and comes.
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

class TwoDisksTest : public ::testing::Test {
 protected:
  explicit TwoDisksTest(const CacheSizes& sizes = {.disk_slots = 32, .disks = 2})
      : cache(sizes), ns(cache.open(small_namespace("m"))) {}

  std::size_t on_disk(std::span<const TestBlock> blocks, std::uint32_t disk) {
    std::size_t there = 0;
    for (const auto& block : blocks)
      there += cache.tiers(block).has(Tier::disk) && cache.disk_of(block) == disk ? 1 : 0;
    return there;
  }

  TestCache cache;
  const std::uint16_t ns;
  static constexpr TierSet kDisk{4};
};

TEST_F(TwoDisksTest, blocks_go_to_the_disk_with_more_room) {
  const auto blocks = cache.prefix(ns, 20, 1);
  ASSERT_EQ(cache.put_all(ns, blocks), 20U);
  cache.store().complete_all();
  EXPECT_EQ(on_disk(blocks, 0), 10U);
  EXPECT_EQ(on_disk(blocks, 1), 10U);
}

TEST_F(TwoDisksTest, the_blocks_of_a_disk_that_is_offline_are_a_miss_and_come_back_with_it) {
  const auto blocks = cache.prefix(ns, 4, 1);
  cache.put_on_disk(ns, blocks);
  const std::uint32_t gone = cache.disk_of(blocks[2]);
  const auto order = cache.order(Tier::disk, kRecordBytes, gone);
  cache.store()[gone].set_online(false);
  EXPECT_TRUE(cache.directory().find(blocks[2].key()).empty());
  const auto grant = cache.lease(ns, blocks);
  EXPECT_LT(grant.slots.size(), 4U);
  cache.store().complete_all();
  if (grant.lease != 0) cache->release(1, grant.lease);
  EXPECT_EQ(cache.tiers(blocks[2]).bits & kDisk.bits, kDisk.bits);
  EXPECT_FALSE(cache->disk().devices()[gone]->online());
  EXPECT_EQ(cache->disk().devices()[gone]->why(), "taken away by the test");

  cache.store()[gone].set_online(true);
  EXPECT_EQ(cache.directory().find(blocks[2].key()), kDisk);
  EXPECT_EQ(cache.order(Tier::disk, kRecordBytes, gone), order);
  EXPECT_EQ(cache.lease(ns, blocks).slots.size(), 4U);
}

TEST_F(TwoDisksTest, a_read_that_is_cut_off_fails_its_lease_and_keeps_its_block) {
  const auto block = cache.prefix(ns, 1, 1)[0];
  cache.put_on_disk(ns, std::span(&block, 1));
  const std::uint32_t disk = cache.disk_of(block);
  const auto grant = cache.lease(ns, std::span(&block, 1));
  cache.store()[disk].set_online(false);
  cache.store().complete_all();
  EXPECT_EQ(cache.ready, (std::vector<Ready>{{1, grant.lease, 0, 0}}));
  EXPECT_EQ(cache->counts().faults, 0U);
  EXPECT_EQ(cache->disk().counts().failures, 0U);
  cache.store()[disk].set_online(true);
  EXPECT_EQ(cache.lease(ns, std::span(&block, 1), 2).slots.size(), 1U);
  cache.store().complete_all();
  EXPECT_TRUE(record_is(cache.record(cache.ready[1].slot), cache.known(ns).layout, block));
}

TEST_F(TwoDisksTest, writes_that_are_cut_off_go_to_the_other_disk) {
  const auto blocks = cache.prefix(ns, 6, 1);
  ASSERT_EQ(cache.put_all(ns, blocks), 6U);
  cache.store()[0].set_online(false);
  cache.store().complete_all();
  EXPECT_EQ(on_disk(blocks, 1), 6U);
  EXPECT_EQ(cache->disk().counts().dropped_writes, 0U);
  EXPECT_EQ(cache->disk().counts().moved_writes, 3U);
  cache.store()[0].set_online(true);
  EXPECT_EQ(cache->disk().devices()[0]->space().bytes_in_use(), 0U);
}

TEST_F(TwoDisksTest, with_no_disk_online_writes_are_dropped_and_counted_and_a_flush_is_done) {
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 2, 1)), 2U);
  for (std::size_t d : {0, 1}) cache.store()[d].set_online(false);
  ASSERT_EQ(cache.put_all(ns, cache.prefix(ns, 3, 900)), 3U);
  std::optional<Result<void>> flushed;
  cache->flush([&](const Result<void>& result) { flushed = result; });
  cache.store().complete_all();
  ASSERT_TRUE(flushed);
  EXPECT_TRUE(flushed->has_value());
  EXPECT_EQ(cache->disk().counts().dropped_writes, 5U);
  EXPECT_EQ(cache->disk().queued(), 0U);
}

TEST_F(TwoDisksTest, a_flush_fails_where_a_disk_went_offline_with_blocks_that_no_flush_covered) {
  const auto blocks = cache.prefix(ns, 2, 1);
  ASSERT_EQ(cache.put_all(ns, blocks), 2U);
  cache.store().complete_all();
  cache.store()[0].set_online(false);
  std::optional<Result<void>> flushed;
  cache->flush([&](const Result<void>& result) { flushed = result; });
  cache.store().complete_all();
  ASSERT_TRUE(flushed);
  ASSERT_FALSE(flushed->has_value());
  EXPECT_EQ(flushed->error().code, Errc::unavailable);
}

TEST_F(TwoDisksTest, slots_of_blocks_dropped_while_their_disk_is_offline_are_free_when_it_is_back) {
  const auto blocks = cache.prefix(ns, 8, 1);
  cache.put_on_disk(ns, blocks);
  cache.store()[0].set_online(false);
  cache->drop(ns, kDisk);
  cache.store().complete_all();
  EXPECT_EQ(cache->disk().devices()[0]->space().bytes_in_use(), 4 * kRecordBytes);
  cache.store()[0].set_online(true);
  EXPECT_EQ(cache->disk().devices()[0]->space().bytes_in_use(), 0U);
  EXPECT_EQ(cache.store().records(), 0U);
}

TEST_F(TwoDisksTest, a_disk_that_is_read_only_serves_its_blocks_and_gets_none) {
  const auto there = cache.prefix(ns, 8, 1);
  cache.put_on_disk(ns, there);
  cache.store()[0].set_read_only(true);
  EXPECT_STREQ(cache->disk().devices()[0]->state_name(), "read-only");
  const auto more = cache.prefix(ns, 6, 5000);
  ASSERT_EQ(cache.put_all(ns, more), 6U);
  cache.store().complete_all();
  EXPECT_EQ(on_disk(more, 1), 6U);
  const auto grant = cache.lease(ns, there);
  EXPECT_EQ(grant.slots.size(), 8U);
  cache.store().complete_all();
  for (const Ready& ready : cache.ready) EXPECT_NE(ready.slot, 0U);
  cache->release(1, grant.lease);
  // What is dropped meanwhile is free when it can be written to again.
  cache->drop(ns, {7});
  cache.store().complete_all();
  EXPECT_GT(cache->disk().devices()[0]->space().bytes_in_use(), 0U);
  cache.store()[0].set_read_only(false);
  EXPECT_EQ(cache->disk().devices()[0]->space().bytes_in_use(), 0U);
  EXPECT_STREQ(cache->disk().devices()[0]->state_name(), "online");
}

class SecondHitTest : public TwoDisksTest {
 protected:
  SecondHitTest() : TwoDisksTest({.admission = Admission::second_hit}) {}
};

TEST_F(SecondHitTest, a_block_is_written_when_it_is_leased_or_committed_again) {
  const auto blocks = cache.prefix(ns, 3, 1);
  ASSERT_EQ(cache.put_all(ns, blocks), 3U);
  EXPECT_EQ(cache->disk().queued(), 0U);
  cache->release(1, cache.lease(ns, std::span(blocks).first(1)).lease);
  EXPECT_EQ(cache->disk().queued(), 1U);
  EXPECT_FALSE(cache.put(ns, blocks[1], Tier::host, 2));
  EXPECT_EQ(cache->disk().queued(), 2U);
  cache.store().complete_all();
  EXPECT_TRUE(cache.tiers(blocks[0]).has(Tier::disk));
  EXPECT_TRUE(cache.tiers(blocks[1]).has(Tier::disk));
  EXPECT_FALSE(cache.tiers(blocks[2]).has(Tier::disk));
}

TEST_F(SecondHitTest, eviction_from_the_host_drops_a_block_that_was_seen_once) {
  const auto once = cache.prefix(ns, 40, 1);
  ASSERT_EQ(cache.put_all(ns, once), 40U);
  ASSERT_TRUE(cache.put(ns, cache.prefix(ns, 1, 5000)[0]));
  EXPECT_EQ(cache.find(once[39].key()), nullptr);
}

class OrphanTest : public TwoDisksTest {};

// A cache over the same stores, as after a restart.
struct Successor {
  explicit Successor(FakeDisks& stores, const CacheSizes& sizes)
      : host(storage::make_memfd_extents(Tier::host, {})),
        directory(DirectoryWriter::create(400, std::array<std::byte, 16>{}).value()),
        cache(TestCache::options(sizes), {{}, host.get(), TestCache::ports(stores), &directory}) {
    cache.memory(Tier::host).on_created = [&stores](storage::Extent& extent) {
      for (std::size_t d = 0; d < stores.size(); ++d) (void)stores[d].register_extent(extent);
    };
    cache.on_ready = [this](SessionId, LeaseId, std::span<const BlockCache::Landed> blocks) {
      for (const auto& block : blocks) landed.push_back(block.slot);
    };
  }
  std::unique_ptr<storage::MemoryExtents> host;
  DirectoryWriter directory;
  std::vector<SlotName> landed;
  BlockCache cache;
};

TEST_F(OrphanTest, blocks_whose_namespace_was_lost_are_kept_until_a_client_opens_it) {
  const auto blocks = cache.prefix(ns, 6, 1);
  cache.put_on_disk(ns, blocks);
  for (std::size_t d : {0, 1}) cache.store()[d].lose_namespaces();
  Successor after(cache.store(), {.device_slots = 0, .disk_slots = 32});
  ASSERT_TRUE(after.cache.recover());
  EXPECT_EQ(after.cache.catalogue().namespaces().orphan_blocks(), 6U);
  EXPECT_EQ(after.cache.catalogue().counts(Tier::disk).blocks, 6U);
  EXPECT_TRUE(cache.store().under_way().empty());

  const auto adopted = after.cache.open_namespace(encode(small_namespace("m"))).value();
  EXPECT_EQ(after.cache.catalogue().namespaces().orphan_blocks(), 0U);
  const auto grant = after.cache.lease(1, adopted, keys_of(blocks));
  ASSERT_EQ(grant.slots.size(), 6U);
  cache.store().complete_all();
  ASSERT_EQ(after.landed.size(), 6U);
  for (const SlotName slot : after.landed) EXPECT_NE(slot, 0U);
  // Remembered again, for the next restart.
  EXPECT_EQ(cache.store()[0].namespaces()->size(), 1U);
  EXPECT_EQ(cache.store()[1].namespaces()->size(), 1U);
}

TEST_F(OrphanTest, orphans_are_evicted_before_all_others) {
  const std::uint16_t other = cache.open(small_namespace("lost"));
  const auto kept = cache.prefix(ns, 3, 1);
  const auto lost = cache.prefix(other, 3, 1);
  cache.put_on_disk(ns, kept);
  cache.put_on_disk(other, lost);  // newer
  for (std::size_t d : {0, 1}) {
    cache.store()[d].lose_namespaces();
    cache.store()[d].remember_namespace(cache.known(ns).id, encode(small_namespace("m")));
  }
  Successor after(cache.store(), {.device_slots = 0, .disk_slots = 32});
  ASSERT_TRUE(after.cache.recover());
  for (std::uint32_t d : {0, 1}) {
    const BlockId oldest = after.cache.catalogue().oldest(Tier::disk, kRecordBytes, d);
    EXPECT_TRUE(
        after.cache.catalogue().namespaces()[after.cache.catalogue().block(oldest).ns].is_orphan());
  }
}

TEST_F(OrphanTest, a_namespace_known_by_its_id_becomes_the_one_that_is_opened) {
  const Tenants tenants;
  Namespaces namespaces(tenants);
  const NamespaceId id = cache.known(ns).id;
  const auto number = namespaces.add_orphan(id, kWideRecordBytes).value();
  EXPECT_TRUE(namespaces[number].is_orphan());
  EXPECT_EQ(namespaces.open(encode(small_namespace("m"))).value(), number);
  EXPECT_FALSE(namespaces[number].is_orphan());
  EXPECT_EQ(namespaces[number].layout.record_bytes, kRecordBytes);
}

}  // namespace
}  // namespace kvtier::daemon::testing
