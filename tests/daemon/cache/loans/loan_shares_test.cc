// How much of a part of a tier one process may be lent.
#include "daemon/cache/loans/loan_shares.h"

#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

class LoanSharesTest : public ::testing::Test {
 protected:
  CacheParts parts;  // 40 host slots
  const std::uint16_t ns = parts.open(small_namespace("m"));
  Reservations reservations;
  LoanShares shares{parts.catalogue, parts.memory, reservations};

  Borrower borrower(std::uint32_t pid, SessionId session, std::uint64_t slot_bytes = kRecordBytes) {
    return {.process = {pid, 1}, .session = session, .ns = ns, .slot_bytes = slot_bytes};
  }
  void lend(const Borrower& to, std::uint32_t slots) {
    for (std::uint32_t i = 0; i < slots; ++i) reservations.add(next_++, to);
  }

 private:
  SlotName next_ = 1;
};

TEST_F(LoanSharesTest, a_process_may_have_a_quarter_of_what_the_others_leave) {
  EXPECT_EQ(shares.of(borrower(1, 1)).more, 10U);
  lend(borrower(1, 1), 10);
  EXPECT_EQ(shares.of(borrower(1, 1)).more, 0U);
  EXPECT_EQ(shares.of(borrower(2, 2)).more, 7U) << "a quarter of 30";
}

TEST_F(LoanSharesTest, loans_of_one_process_share_its_part_evenly) {
  lend(borrower(1, 1), 10);
  const auto late = shares.of(borrower(1, 2));
  EXPECT_EQ(late.more, 0U);
  EXPECT_EQ(late.due, 5U);
  EXPECT_EQ(late.loan_bytes, 5 * kRecordBytes);
}

TEST_F(LoanSharesTest, one_slot_larger_than_the_part_is_lent_where_it_is_not_much) {
  EXPECT_EQ(shares.of(borrower(1, 1, 12 * kRecordBytes)).more, 1U);
  lend(borrower(1, 1, 12 * kRecordBytes), 1);
  EXPECT_EQ(shares.of(borrower(1, 2, 12 * kRecordBytes)).more, 0U) << "more than half with it";
}

TEST_F(LoanSharesTest, there_is_nothing_for_a_closed_namespace_or_where_there_is_no_such_part) {
  Borrower nowhere = borrower(1, 1);
  nowhere.tier = Tier::device;
  nowhere.device = 7;
  EXPECT_EQ(shares.of(nowhere).due, 0U);
  parts.catalogue.namespaces().close(ns);
  EXPECT_EQ(shares.of(borrower(1, 1)).more, 0U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
