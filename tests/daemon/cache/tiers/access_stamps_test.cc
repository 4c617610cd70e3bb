// Stamps of what was used, on their way to the stores.
#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

class AccessStampsTest : public ::testing::Test {
 protected:
  CacheParts parts;
  const std::uint16_t ns = parts.open(small_namespace("m"));
  const std::vector<TestBlock> blocks = parts.prefix(ns, 2, 1);
  const BlockId id = parts.put_on_disk(ns, blocks[0]);
};

TEST_F(AccessStampsTest, the_store_is_handed_the_stamp_that_a_block_has_by_then) {
  parts.disk.touched(id);
  parts.catalogue.set_last_access(id, 4711);
  parts.disk.touched(id);
  EXPECT_TRUE(parts.catalogue.block(id).stamp_dirty);
  parts.disk.write_stamps();
  EXPECT_EQ(parts.stores.stamp(blocks[0].key()), 4711U);
  EXPECT_FALSE(parts.catalogue.block(id).stamp_dirty);
}

// Every second each block in use cost the index a write.
TEST_F(AccessStampsTest, they_are_gathered_for_a_minute) {
  parts.catalogue.set_last_access(id, 4711);
  parts.disk.touched(id);
  for (std::uint32_t second = 1; second < limits::kStampsEvery; ++second) parts.disk.pass_stamps();
  EXPECT_NE(parts.stores.stamp(blocks[0].key()), 4711U);
  parts.disk.pass_stamps();
  EXPECT_EQ(parts.stores.stamp(blocks[0].key()), 4711U);
  EXPECT_FALSE(parts.catalogue.block(id).stamp_dirty);
}

TEST_F(AccessStampsTest, a_block_that_is_not_on_disk_or_has_left_it_has_none) {
  const BlockId in_memory = parts.put(ns, blocks[1]);
  parts.disk.touched(in_memory);
  EXPECT_FALSE(parts.catalogue.block(in_memory).stamp_dirty);
  parts.put(ns, blocks[0]);
  parts.disk.touched(id);
  parts.disk.forget({&id, 1}, Removal::drop);
  parts.disk.write_stamps();
  EXPECT_FALSE(parts.catalogue.block(id).stamp_dirty);
}

}  // namespace
}  // namespace kvtier::daemon::testing
