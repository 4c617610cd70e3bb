// Which slot a record gets, and whose it was.
#include "daemon/cache/tiers/disk_room.h"

#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

class DiskRoomTest : public ::testing::Test {
 protected:
  DiskRoomTest() {
    parts.catalogue.on_evictable = [this](Tier tier, Place at, TenantId tenant, bool evictable,
                                          std::uint32_t count) {
      if (tier != Tier::disk)
        return parts.memory.of(tier, at).set_evictable(at, tenant, evictable, count);
      devices[device_of(at)].set_evictable(location_of(at).segment, evictable, count);
    };
    devices.on_room = [this] { ++room_made; };
  }
  static std::vector<Tenant> tenants() {
    Tenant small{.name = "small", .salts = {"s"}};
    small.limits[index_of(Tier::disk)].quota = 2 * kRecordBytes;
    return {{.name = "default", .salts = {}}, small};
  }
  // In a slot that the room found, as if it had been written.
  BlockId put(std::uint16_t of, const TestBlock& block) {
    const auto& known = parts.known(of);
    const auto slot = room.find(known.tenant, known.layout.record_bytes);
    if (!slot) return kNoBlock;
    const BlockId id = parts.put(of, block);
    devices[slot->device].set_block(slot->at, id);
    parts.catalogue.place(id, Tier::disk, disk_place(slot->device, slot->at),
                          block.identity.parent);
    devices.add_usage(known.tenant, known.layout.record_bytes);
    parts.placements.remove(id, Tier::host, Removal::drop);
    return id;
  }
  std::uint32_t disk_of(BlockId id) const { return device_of(devices.place_of(id)); }

  CacheParts parts{CacheSizes{.disk_slots = 32, .disks = 2, .tenants = tenants()}};
  DiskDevices devices{
      {parts.options.disk.segments_bytes, parts.options.disk.segment_bytes, parts.options.disk.now},
      TestCache::ports(parts.stores),
      parts.catalogue,
      parts.later};
  DiskRoom room{parts.catalogue, devices, parts.later};
  const std::uint16_t ns = parts.open(small_namespace("m"));
  int room_made = 0;
};

TEST_F(DiskRoomTest, a_record_goes_to_the_online_device_with_the_least_in_use) {
  const auto blocks = parts.prefix(ns, 4, 1);
  const BlockId first = put(ns, blocks[0]), second = put(ns, blocks[1]);
  EXPECT_NE(disk_of(first), disk_of(second));
  devices.set_state(0, storage::DiskState::offline, "pulled out");
  EXPECT_EQ(disk_of(put(ns, blocks[2])), 1U);
  EXPECT_EQ(disk_of(put(ns, blocks[3])), 1U);
}

TEST_F(DiskRoomTest, where_no_slot_is_free_the_coldest_block_gives_its_own) {
  const auto blocks = parts.prefix(ns, 64, 1);
  BlockId coldest = kNoBlock;
  for (const TestBlock& block : blocks) put(ns, block);
  coldest = parts.catalogue.oldest(Tier::disk);
  const Key going = parts.catalogue.block(coldest).key;
  const auto slot = room.find(kDefaultTenant, kRecordBytes);
  ASSERT_TRUE(slot);
  EXPECT_EQ(slot->replaces, going);
  EXPECT_EQ(parts.catalogue.find(ns, going), kNoBlock);
}

TEST_F(DiskRoomTest, a_tenant_at_its_quota_gets_a_slot_of_its_own) {
  Namespace small = small_namespace("m");
  small.tenant = "s";
  const auto its = parts.open(small);
  const auto blocks = parts.prefix(its, 2, 1);
  for (const TestBlock& block : blocks) ASSERT_NE(put(its, block), kNoBlock);
  const auto slot = room.find(parts.known(its).tenant, kRecordBytes);
  ASSERT_TRUE(slot);
  EXPECT_TRUE(slot->replaces == blocks[0].key() || slot->replaces == blocks[1].key());
  EXPECT_FALSE(room.over_quota(parts.known(its).tenant, kRecordBytes));
}

TEST_F(DiskRoomTest, for_another_size_one_segment_at_a_time_is_emptied) {
  for (const TestBlock& block : parts.prefix(ns, 64, 1)) put(ns, block);
  EXPECT_FALSE(room.find(kDefaultTenant, kWideRecordBytes));
  EXPECT_TRUE(room.more(kDefaultTenant, kWideRecordBytes));
  EXPECT_TRUE(room.more(kDefaultTenant, kWideRecordBytes));
  EXPECT_EQ(parts.catalogue.counts(Tier::disk).blocks, 48U) << "16 a segment";
  EXPECT_EQ(room_made, 0);
  parts.stores.complete_all();
  EXPECT_EQ(room_made, 1);
  EXPECT_TRUE(room.find(kDefaultTenant, kWideRecordBytes));
}

}  // namespace
}  // namespace kvtier::daemon::testing
