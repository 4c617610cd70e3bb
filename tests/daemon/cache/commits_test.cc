// What makes a filled block visible, and what becomes of the slots of one that does not.
#include "daemon/cache/commits.h"

#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

class CommitsTest : public ::testing::Test {
 protected:
  SlotName lend(Tier tier = Tier::host, SessionId session = 1) {
    return loans.lend(loans.borrower(session, {100, 1}, ns, tier, 0, 0), 1, false).at(0);
  }
  SlotName filled(Tier tier = Tier::host, SessionId session = 1) {
    const SlotName slot = lend(tier, session);
    fill_record(record(slot, tier), parts.known(ns).layout, block);
    return slot;
  }
  std::span<std::byte> record(SlotName slot, Tier tier) {
    const Place at = place_named(slot);
    return parts.memory.of(tier, at).slot(at);
  }
  bool commit(std::vector<SlotName> slots, SessionId session = 1) {
    return commits.commit(
        session, ns,
        {block.key(), block.identity.parent, block.identity.block_index, block.tokens, slots});
  }

  CacheParts parts;
  const std::uint16_t ns = parts.open(small_namespace("m"));
  TestBlock block = parts.prefix(ns, 1, 1)[0];
  Reservations reservations;
  LoanShares shares{parts.catalogue, parts.memory, reservations};
  Loans loans{parts.catalogue, parts.memory, parts.eviction, parts.room, reservations, shares};
  Commits commits{parts.catalogue, parts.memory, parts.disk,  parts.placements,
                  parts.room,      loans,        parts.counts};
};

TEST_F(CommitsTest, a_filled_slot_becomes_a_block_and_is_lent_no_more) {
  EXPECT_TRUE(commit({filled()}));
  EXPECT_EQ(parts.tiers(block), CacheParts::kHost);
  EXPECT_EQ(reservations.reserved(), 0U);
  EXPECT_EQ(parts.disk.queued(), 1U);
}

TEST_F(CommitsTest, a_record_that_does_not_prove_what_it_is_is_refused_and_its_slot_freed) {
  EXPECT_FALSE(commit({lend()})) << "nothing was filled in";
  const SlotName slot = filled();
  block.tokens[0] ^= 1;
  EXPECT_FALSE(commit({slot})) << "not the key of these tokens";
  EXPECT_EQ(parts.counts.refused_commits, 2U);
  EXPECT_EQ(parts.memory.host().used_bytes(), 0U);
  EXPECT_EQ(reservations.reserved(), 0U);
}

TEST_F(CommitsTest, a_slot_of_another_session_is_left_to_it) {
  const SlotName slot = filled(Tier::host, 2);
  EXPECT_FALSE(commit({slot}, 1));
  EXPECT_EQ(reservations.reserved(), 1U);
}

TEST_F(CommitsTest, a_second_writer_loses_quietly_with_all_its_slots) {
  ASSERT_TRUE(commit({filled()}));
  EXPECT_FALSE(commit({filled(), filled(Tier::device)}));
  EXPECT_EQ(parts.tiers(block), CacheParts::kHost);
  EXPECT_EQ(parts.counts.refused_commits, 0U);
  EXPECT_EQ(parts.memory.host().used_bytes(), kRecordBytes);
}

TEST_F(CommitsTest, nothing_is_taken_under_a_closed_namespace) {
  const SlotName slot = filled();
  parts.catalogue.namespaces().close(ns);
  EXPECT_FALSE(commit({slot}));
  EXPECT_TRUE(parts.tiers(block).empty());
}

}  // namespace
}  // namespace kvtier::daemon::testing
