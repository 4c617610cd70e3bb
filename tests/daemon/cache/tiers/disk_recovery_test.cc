// What the disks hold becomes blocks again.
#include "daemon/cache/tiers/disk_recovery.h"

#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

class DiskRecoveryTest : public ::testing::Test {
 protected:
  DiskRecoveryTest() {
    blocks = before.prefix(old, 3, 1);
    for (const TestBlock& block : blocks) before.put_on_disk(old, block);
    devices.on_room = [] {};
  }
  CacheParts before;
  const std::uint16_t old = before.open(small_namespace("m"));
  CacheParts after;
  std::vector<TestBlock> blocks;
  DiskDevices devices{
      {after.options.disk.segments_bytes, after.options.disk.segment_bytes, after.options.disk.now},
      TestCache::ports(before.stores),
      after.catalogue,
      after.later};
  DiskRecovery recovery{after.catalogue, devices, after.later};
};

TEST_F(DiskRecoveryTest, blocks_come_back_with_their_namespace_their_usage_and_their_order) {
  const auto newest = recovery.recover();
  ASSERT_TRUE(newest);
  EXPECT_EQ(*newest, before.stores.stamp(blocks[2].key()));
  const auto ns = after.catalogue.namespaces().find(before.known(old).id);
  ASSERT_TRUE(ns);
  for (const TestBlock& block : blocks) EXPECT_NE(after.catalogue.find(*ns, block.key()), kNoBlock);
  EXPECT_EQ(devices.used_by(kDefaultTenant), 3 * kRecordBytes);
  EXPECT_EQ(after.catalogue.block(after.catalogue.oldest(Tier::disk)).key, blocks[0].key());
}

// Its merges would take the processors from the start.
TEST_F(DiskRecoveryTest, a_store_is_told_once_and_when_all_blocks_are_in_their_order) {
  std::vector<BlockId> oldest;
  before.stores[0].on_recovered = [&] { oldest.push_back(after.catalogue.oldest(Tier::disk)); };
  ASSERT_TRUE(recovery.recover());
  ASSERT_EQ(oldest.size(), 1U);
  ASSERT_NE(oldest[0], kNoBlock);
  EXPECT_EQ(after.catalogue.block(oldest[0]).key, blocks[0].key());
}

TEST_F(DiskRecoveryTest, of_namespaces_that_the_stores_do_not_know_they_are_orphans) {
  before.stores[0].lose_namespaces();
  ASSERT_TRUE(recovery.recover());
  EXPECT_EQ(after.catalogue.namespaces().orphan_blocks(), 3U);
}

TEST_F(DiskRecoveryTest, an_entry_that_is_another_blocks_is_erased_from_the_store) {
  const auto other = after.open(small_namespace("other"));
  // Another namespace has the key in memory.
  TestBlock taken = blocks[1];
  taken.identity.ns = after.known(other).id;
  ASSERT_NE(after.put(other, taken), kNoBlock);
  ASSERT_TRUE(recovery.recover());
  before.stores.complete_all();
  EXPECT_FALSE(before.stores.indexed(blocks[1].key()));
  EXPECT_EQ(devices.used_by(kDefaultTenant), 2 * kRecordBytes);
}

TEST_F(DiskRecoveryTest, health_is_the_devices_but_while_it_is_taken_over) {
  ASSERT_TRUE(recovery.recover());
  EXPECT_FALSE(recovery.takes_health(0, storage::DiskState::offline, "gone"));
  EXPECT_TRUE(recovery.unknown_directory().empty());
}

}  // namespace
}  // namespace kvtier::daemon::testing
