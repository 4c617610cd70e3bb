// What users hold leased, counted over all their sessions.
#include "daemon/cache/leases/user_holds.h"

#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

class UserHoldsTest : public ::testing::Test {
 protected:
  CacheParts parts;  // 40 host slots
  const std::uint16_t ns = parts.open(small_namespace("m"));
  const std::vector<BlockId> blocks = parts.put_all(ns, parts.prefix(ns, 30, 1));
  std::uint32_t holds(BlockId id) const {
    return parts.catalogue.block(id).holds[index_of(Tier::host)];
  }
};

TEST_F(UserHoldsTest, a_session_that_was_never_said_to_begin_is_a_user_of_its_own) {
  UserHolds users(parts.catalogue, parts.memory, 100);
  users.begin_session(1, 7);
  users.begin_session(2, 7);
  EXPECT_EQ(users.user_of(1), users.user_of(2));
  EXPECT_NE(users.user_of(3), users.user_of(4));
  users.end_session(1);
  EXPECT_NE(users.user_of(1), users.user_of(2));
}

TEST_F(UserHoldsTest, a_user_is_one_hold_of_a_block_however_many_leases_have_it) {
  UserHolds users(parts.catalogue, parts.memory, 100);
  UserHolds::User& user = users.begin_lease(7, ns, blocks.size());
  users.begin_lease(7, ns, blocks.size());
  for (int lease = 0; lease < 2; ++lease) {
    ASSERT_TRUE(users.count(user, blocks[0], Tier::host, 0));
    ASSERT_TRUE(users.hold(user, blocks[0], Tier::host));
    users.add_blocks(user, 1);
  }
  EXPECT_EQ(holds(blocks[0]), 1U);
  EXPECT_EQ(users.sum_of(7).blocks, 2U);
  for (std::uint32_t left : {1U, 0U}) {
    users.uncount(user, blocks[0], Tier::host, 0, true);
    users.end_lease(7, 1);
    parts.catalogue.enter_orders(std::span(blocks).first(1));
    EXPECT_EQ(holds(blocks[0]), left);
    EXPECT_EQ(users.sum_of(7).leases, left);
  }
}

TEST_F(UserHoldsTest, a_user_may_hold_its_part_of_a_tier_and_one_block_always) {
  UserHolds users(parts.catalogue, parts.memory, 50);
  UserHolds::User& user = users.begin_lease(7, ns, blocks.size());
  std::size_t counted = 0;
  for (const BlockId id : blocks) counted += users.count(user, id, Tier::host, 0) ? 1 : 0;
  EXPECT_EQ(counted, 20U);
  EXPECT_TRUE(users.count(user, blocks[0], Tier::host, 0)) << "it has that one already";
  UserHolds strict(parts.catalogue, parts.memory, 0);
  UserHolds::User& other = strict.begin_lease(7, ns, blocks.size());
  EXPECT_TRUE(strict.count(other, blocks[0], Tier::host, 0));
  EXPECT_FALSE(strict.count(other, blocks[1], Tier::host, 0));
}

}  // namespace
}  // namespace kvtier::daemon::testing
