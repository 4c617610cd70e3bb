// Extents on their way out: one at a time, in turns, and never what somebody holds.
#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

class EmptyingTest : public ::testing::Test {
 protected:
  CacheParts parts;  // 40 host slots in extents of 16
  const std::uint16_t ns = parts.open(small_namespace("m"));
  const std::vector<BlockId> blocks = parts.put_all(ns, parts.prefix(ns, 40, 1));
  MemoryTier& host = parts.memory.host();
  bool empty_one() { return parts.emptying.empty_one_for(host, kDefaultTenant, kWideRecordBytes); }
};

TEST_F(EmptyingTest, an_extent_that_nobody_uses_goes_for_another_size) {
  const auto before = host.taken_bytes();
  EXPECT_TRUE(empty_one());
  EXPECT_LT(host.taken_bytes(), before);
  EXPECT_FALSE(host.draining());
}

TEST_F(EmptyingTest, none_goes_while_each_has_a_block_that_somebody_holds) {
  for (const BlockId id : blocks) ASSERT_TRUE(parts.catalogue.hold(id, Tier::host));
  EXPECT_FALSE(empty_one());
  EXPECT_EQ(parts.catalogue.counts(Tier::host).blocks, 40U);
}

TEST_F(EmptyingTest, what_is_above_a_cap_is_given_back_and_not_used_again) {
  host.set_cap(16 * kRecordBytes);
  EXPECT_FALSE(empty_one());
  EXPECT_TRUE(parts.emptying.shrink());
  EXPECT_TRUE(parts.emptying.shrink_goes_on());
  while (parts.emptying.shrink()) ASSERT_TRUE(parts.emptying.shrink_goes_on());
  EXPECT_LE(host.taken_bytes(), 16 * kRecordBytes);
}

TEST_F(EmptyingTest, a_cap_that_is_raised_again_ends_what_it_began) {
  for (const BlockId id : blocks) ASSERT_TRUE(parts.catalogue.hold(id, Tier::host));
  host.set_cap(16 * kRecordBytes);
  EXPECT_TRUE(parts.emptying.shrink());
  ASSERT_TRUE(host.draining());
  host.set_cap(40 * kRecordBytes);
  EXPECT_FALSE(parts.emptying.shrink());
  EXPECT_FALSE(host.draining());
}

TEST_F(EmptyingTest, an_extent_kept_by_lent_slots_alone_is_awaited_and_stays_when_nobody_waits) {
  // One slot of the last extent is lent; the others hold what somebody uses.
  for (const BlockId id : blocks) ASSERT_TRUE(parts.catalogue.hold(id, Tier::host));
  const Place at = parts.catalogue.block(blocks[39]).places[index_of(Tier::host)];
  for (const BlockId id : blocks) {
    if (parts.catalogue.block(id).places[index_of(Tier::host)].container != at.container) continue;
    parts.catalogue.unhold(id, Tier::host);
  }
  parts.placements.remove(blocks[39], Tier::host, Removal::drop);
  const auto lent = host.take(kRecordBytes);
  ASSERT_EQ(lent, at);
  host.set_lent(*lent, true);
  EXPECT_EQ(parts.emptying.await_loans_for(host, kDefaultTenant, kWideRecordBytes),
            ExtentId(at.container));
  EXPECT_FALSE(empty_one()) << "the slot has not come home";
  parts.emptying.stop_awaiting_loans();
  EXPECT_FALSE(host.draining());
}

TEST(EmptyingInTurns, a_large_extent_goes_in_later_turns_and_says_when_it_has) {
  constexpr std::uint32_t kSlots = limits::kEmptyStep + 10;
  CacheParts parts({.blocks_max = kSlots, .host_slots = kSlots, .extent_slots = kSlots});
  parts.in_turns();
  bool room = false;
  parts.emptying.on_room = [&] { room = true; };
  const auto ns = parts.open(small_namespace("m"));
  parts.put_all(ns, parts.prefix(ns, kSlots, 1));
  MemoryTier& host = parts.memory.host();
  EXPECT_FALSE(parts.emptying.empty_one_for(host, kDefaultTenant, kWideRecordBytes));
  EXPECT_EQ(parts.catalogue.counts(Tier::host).blocks, 10U);
  EXPECT_FALSE(room);
  while (!parts.turns.empty()) parts.turn();
  EXPECT_TRUE(room);
  EXPECT_EQ(host.taken_bytes(), 0U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
