// Reads from disk into the host tier, and the order of what happens as one lands.
#include "daemon/cache/leases/loads.h"

#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

class LoadsTest : public ::testing::Test {
 protected:
  LoadsTest() {
    loads.on_landed = [this](BlockId, std::span<const Loads::Waiter> waiters, bool good) {
      landed.push_back(good);
      waited = waiters.size();
      there_as_it_landed = parts.tiers(block);
    };
    loads.on_settled = [this](BlockId, std::span<const Loads::Waiter>) {
      there_as_it_settled = parts.tiers(block);
    };
    EXPECT_TRUE(loads.ensure(id));
    loads.wait(id, {1, 0});
  }

  CacheParts parts;
  const std::uint16_t ns = parts.open(small_namespace("m"));
  const TestBlock block = parts.prefix(ns, 1, 1)[0];
  const BlockId id = parts.put_on_disk(ns, block);
  Loads loads{parts.catalogue,  parts.memory.host(), parts.disk,  parts.remote,
              parts.placements, parts.room,          parts.counts};
  std::vector<bool> landed;
  std::size_t waited = 0;
  TierSet there_as_it_landed, there_as_it_settled;
};

TEST_F(LoadsTest, a_block_is_read_once_for_all_who_wait) {
  EXPECT_TRUE(loads.ensure(id));
  loads.wait(id, {2, 5});
  EXPECT_EQ(parts.stores.under_way().size(), 1U);
  parts.stores.complete_all();
  EXPECT_EQ(landed, std::vector{true});
  EXPECT_EQ(waited, 2U);
  EXPECT_EQ(parts.tiers(block), CacheParts::kHost.with(Tier::disk));
  EXPECT_FALSE(parts.catalogue.block(id).loading);
}

TEST_F(LoadsTest, what_did_not_hold_goes_after_those_who_wait_gave_it_up_and_before_they_are_told) {
  parts.stores.complete(parts.stores.under_way()[0], FakeStore::Fate::corrupt);
  EXPECT_EQ(landed, std::vector{false});
  EXPECT_EQ(there_as_it_landed, CacheParts::kDisk);
  EXPECT_TRUE(there_as_it_settled.empty());
  EXPECT_EQ(parts.counts.faults, 1U);
  EXPECT_EQ(parts.memory.host().used_bytes(), 0U);
}

TEST_F(LoadsTest, what_cannot_be_reached_now_stays) {
  parts.stores.complete(parts.stores.under_way()[0], FakeStore::Fate::unavailable);
  EXPECT_EQ(landed, std::vector{false});
  EXPECT_EQ(there_as_it_settled, CacheParts::kDisk);
  EXPECT_EQ(parts.counts.faults, 0U);
}

TEST(LoadsWithoutRoom, a_read_that_finds_no_slot_does_not_begin) {
  CacheParts parts;
  const auto ns = parts.open(small_namespace("m"));
  const BlockId id = parts.put_on_disk(ns, parts.prefix(ns, 1, 1)[0]);
  for (const BlockId other : parts.put_all(ns, parts.prefix(ns, 40, 1000)))
    ASSERT_TRUE(parts.catalogue.hold(other, Tier::host));
  Loads loads(parts.catalogue, parts.memory.host(), parts.disk, parts.remote, parts.placements,
              parts.room, parts.counts);
  EXPECT_FALSE(loads.ensure(id));
  EXPECT_FALSE(parts.catalogue.block(id).loading);
}

}  // namespace
}  // namespace kvtier::daemon::testing
