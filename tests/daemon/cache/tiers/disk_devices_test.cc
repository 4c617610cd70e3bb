// Which device can be used, what lies on it, and how much of it is whose.
#include "daemon/cache/tiers/disk_devices.h"

#include "storage/index/segments.h"
#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

class DiskDevicesTest : public ::testing::Test {
 protected:
  DiskDevicesTest() {
    devices.on_room = [this] { ++room; };
  }
  // In a slot of this device, as one that was written there.
  BlockId put(const TestBlock& block, std::uint32_t number) {
    const BlockId id = parts.put(ns, block);
    const auto at = devices[number].space().allocate(kRecordBytes);
    devices[number].set_block(*at, id);
    parts.catalogue.place(id, Tier::disk, disk_place(number, *at), block.identity.parent);
    devices.add_usage(kDefaultTenant, kRecordBytes);
    parts.placements.remove(id, Tier::host, Removal::drop);
    return id;
  }

  CacheParts parts{CacheSizes{.disks = 2}};
  DiskDevices devices{
      {parts.options.disk.segments_bytes, parts.options.disk.segment_bytes, parts.options.disk.now},
      TestCache::ports(parts.stores),
      parts.catalogue,
      parts.later};
  const std::uint16_t ns = parts.open(small_namespace("m"));
  const std::vector<TestBlock> blocks = parts.prefix(ns, 2, 1);
  int room = 0;
};

TEST_F(DiskDevicesTest, the_blocks_of_a_device_that_is_away_are_hidden_and_not_forgotten) {
  const BlockId id = put(blocks[0], 1);
  devices.set_state(1, storage::DiskState::offline, "pulled out");
  EXPECT_EQ(devices.online(), 1U);
  EXPECT_TRUE(parts.catalogue.reachable(id).empty());
  EXPECT_TRUE(parts.directory.find(blocks[0].key()).empty());
  EXPECT_EQ(parts.tiers(blocks[0]), CacheParts::kDisk);
  EXPECT_EQ(devices[1].why(), "pulled out");
  devices.set_state(1, storage::DiskState::online, {});
  EXPECT_EQ(parts.directory.find(blocks[0].key()), CacheParts::kDisk);
  EXPECT_EQ(room, 2);
}

TEST_F(DiskDevicesTest, a_forgotten_block_counts_for_nobody_and_its_slot_is_free_after_the_index) {
  const BlockId id = put(blocks[0], 0);
  ASSERT_EQ(devices.used_by(kDefaultTenant), kRecordBytes);
  devices.forget({&id, 1}, Removal::drop);
  EXPECT_EQ(devices.used_by(kDefaultTenant), 0U);
  EXPECT_EQ(devices[0].space().bytes_in_use(), kRecordBytes);
  parts.stores.complete_all();
  EXPECT_EQ(devices[0].space().bytes_in_use(), 0U);
  EXPECT_EQ(room, 1);
}

TEST_F(DiskDevicesTest, a_slot_whose_record_did_not_hold_is_used_again_once_it_was_tested) {
  parts.stores[0].tests_places = true;
  const BlockId id = put(blocks[0], 0);
  const auto at = location_of(devices.place_of(id));
  devices.retire(id, Removal::corrupt);
  EXPECT_EQ(parts.stores[0].place_tests(), 0U) << "before the index has forgotten the record";
  parts.stores.complete_all();
  ASSERT_EQ(parts.stores[0].place_tests(), 1U);
  EXPECT_NE(devices[0].space().allocate(kRecordBytes), at) << "not while it is tested";
  EXPECT_EQ(parts.stores[0].end_place_test({}), storage::place_of(at, kRecordBytes));
  EXPECT_EQ(room, 1);
  EXPECT_EQ(devices[0].space().bad_bytes(), 0U);
  EXPECT_EQ(devices[0].space().allocate(kRecordBytes), at);
}

TEST_F(DiskDevicesTest, a_place_that_does_not_hold_is_left_out_for_good_and_is_told_of) {
  parts.stores[0].tests_places = true;
  const BlockId id = put(blocks[0], 0);
  const auto at = location_of(devices.place_of(id));
  devices.retire(id, Removal::io);
  parts.stores.complete_all();
  parts.stores[0].end_place_test(make_error(Errc::io, "planted"));
  EXPECT_EQ(devices[0].space().bad_bytes(), kRecordBytes);
  EXPECT_EQ(devices[0].space().bytes_in_use(), 0U);
  EXPECT_NE(devices[0].space().allocate(kRecordBytes), at);
}

TEST_F(DiskDevicesTest, what_the_store_remembers_as_bad_is_not_given_out) {
  parts.stores[0].bad = {storage::place_of({0, 0}, kRecordBytes)};
  devices[0].leave_out_bad_places();
  EXPECT_EQ(devices[0].space().allocate(kRecordBytes), (storage::DiskLocation{0, 1}));
}

TEST_F(DiskDevicesTest, a_slot_that_cannot_be_tested_is_not_used_again) {
  const BlockId id = put(blocks[0], 0);
  const auto at = location_of(devices.place_of(id));
  devices.retire(id, Removal::corrupt);
  parts.stores.complete_all();
  EXPECT_EQ(devices.used_by(kDefaultTenant), 0U);
  EXPECT_NE(devices[0].space().allocate(kRecordBytes), at);
}

}  // namespace
}  // namespace kvtier::daemon::testing
