// Lending slots, and whose come home so that another gets its due.
#include "daemon/cache/loans/recalls.h"

#include "daemon/cache/loans/loans.h"
#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

using storage::SlotState;

class LoanPartsTest : public ::testing::Test {
 protected:
  CacheParts parts;
  const std::uint16_t ns = parts.open(small_namespace("m"));
  Reservations reservations;
  LoanShares shares{parts.catalogue, parts.memory, reservations};
  Loans loans{parts.catalogue, parts.memory, parts.eviction, parts.room, reservations, shares};
  Recalls recalls{parts.memory, parts.emptying, reservations, shares};
  MemoryTier& host = parts.memory.host();

  Borrower borrower(std::uint32_t pid, SessionId session) {
    return loans.borrower(session, {pid, 1}, ns, Tier::host, 0, 0);
  }
  SlotState state(SlotName slot) {
    const Place at = place_named(slot);
    return host.table(at).entry(at.slot).state;
  }
};

TEST_F(LoanPartsTest, a_lent_slot_is_reserved_until_its_session_gives_it_back) {
  const auto slots = loans.lend(borrower(1, 1), 2, false);
  ASSERT_EQ(slots.size(), 2U);
  EXPECT_EQ(state(slots[0]), SlotState::reserved);
  loans.abandon(2, slots[0]);
  EXPECT_EQ(state(slots[0]), SlotState::reserved) << "it is not session 2's";
  loans.abandon(1, slots[0]);
  EXPECT_EQ(state(slots[0]), SlotState::free);
  EXPECT_EQ(loans.take_back(slots[1], 1), Tier::host);
  EXPECT_EQ(loans.take_back(slots[1], 1), std::nullopt);
  EXPECT_EQ(reservations.reserved(), 0U);
}

TEST_F(LoanPartsTest, slots_of_an_ended_session_stay_until_its_process_or_client_lets_go) {
  const auto slots = loans.lend(borrower(1, 1), 2, false);
  loans.end_session(1);
  EXPECT_EQ(state(slots[0]), SlotState::quarantined);
  loans.let_go({1, 1}, 77);
  EXPECT_EQ(state(slots[0]), SlotState::quarantined) << "another client's word";
  loans.let_go({1, 1}, 0);
  EXPECT_EQ(state(slots[0]), SlotState::free);
  EXPECT_EQ(host.used_bytes(), 0U);
}

TEST_F(LoanPartsTest, who_has_more_than_its_share_is_named_and_who_has_less_is_not) {
  loans.lend(borrower(1, 1), 9, false);
  loans.lend(borrower(1, 2), 1, false);
  Recalls::BySession named;
  EXPECT_TRUE(recalls.add_for(borrower(1, 3), named));
  ASSERT_EQ(named.size(), 1U);
  ASSERT_EQ(named.at(1).keeps.size(), 1U);
  EXPECT_EQ(named.at(1).keeps[0].slots, 3U) << "a third of ten";
}

TEST_F(LoanPartsTest, a_borrower_that_has_its_due_has_nobody_named) {
  loans.lend(borrower(1, 1), 10, false);
  Recalls::BySession named;
  EXPECT_FALSE(recalls.add_for(borrower(1, 1), named));
  EXPECT_TRUE(named.empty());
}

TEST_F(LoanPartsTest, a_lowered_cap_names_those_with_slots_in_the_extent_that_goes) {
  const auto slots = loans.lend(borrower(1, 1), 2, false);
  host.set_cap(1);
  ASSERT_TRUE(parts.emptying.shrink());
  Recalls::BySession named;
  recalls.add_for_cap(named);
  EXPECT_EQ(named.at(1).extents, std::vector{ExtentId(place_named(slots[0]).container)});
}

}  // namespace
}  // namespace kvtier::daemon::testing
