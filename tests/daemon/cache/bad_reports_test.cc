// Whose word is taken for a record that does not hold.
#include "daemon/cache/bad_reports.h"

#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

class BadReportsTest : public ::testing::Test {
 protected:
  void spoil() {
    const Place at = parts.catalogue.block(id).places[index_of(Tier::host)];
    parts.memory.host().slot(at)[0] ^= std::byte{1};
  }
  // How many were believed, of one.
  std::uint64_t report(SessionId session) {
    const Key key = block.key();
    return 1 - reports.report(session, {&ns, 1}, {&key, 1});
  }
  CacheParts parts;
  const std::uint16_t ns = parts.open(small_namespace("m"));
  const TestBlock block = parts.prefix(ns, 1, 1)[0];
  const BlockId id = parts.put(ns, block);
  Pins pins{parts.catalogue, [](Tier, std::uint32_t) { return 1U << 30; }};
  UserHolds users{parts.catalogue, parts.memory, 100};
  Loads loads{parts.catalogue,  parts.memory.host(), parts.disk,  parts.remote,
              parts.placements, parts.room,          parts.counts};
  Leases leases{{100, 100},       parts.catalogue, parts.memory, parts.disk,   parts.remote,
                parts.placements, loads,           users,        parts.counts, parts.later};
  BadReports reports{parts.catalogue, parts.memory, pins, parts.placements, leases, parts.counts};
  LeaseId lease(SessionId session) {
    const Key key = block.key();
    return leases.lease(session, ns, {&key, 1}, 0, 1).lease;
  }
};

TEST_F(BadReportsTest, a_report_of_what_the_session_does_not_hold_is_not_believed) {
  spoil();
  lease(2);
  EXPECT_EQ(report(1), 0U);
  EXPECT_EQ(parts.tiers(block), CacheParts::kHost);
}

TEST_F(BadReportsTest, a_report_of_a_record_that_holds_is_not_believed) {
  lease(1);
  EXPECT_EQ(report(1), 0U);
  EXPECT_EQ(parts.counts.reported_records_read, 1U);
}

TEST_F(BadReportsTest, a_placement_that_does_not_hold_goes_with_its_last_lease) {
  const LeaseId held = lease(1);
  spoil();
  EXPECT_EQ(report(1), 1U);
  EXPECT_EQ(parts.counts.faults, 1U);
  EXPECT_EQ(parts.catalogue.find(ns, block.key()), kNoBlock);
  EXPECT_EQ(parts.tiers(block), CacheParts::kHost);
  EXPECT_TRUE(leases.release(1, held, 0));
  EXPECT_TRUE(parts.tiers(block).empty());
  EXPECT_EQ(parts.known(ns).lookups.misses, 1U);
}

TEST_F(BadReportsTest, what_a_lease_looked_up_is_counted_once_and_when_it_is_closed) {
  const LeaseId held = lease(1);
  EXPECT_EQ(leases.blocks(), 1U);
  EXPECT_EQ(parts.known(ns).lookups.looked_up(), 0U);
  EXPECT_TRUE(leases.release(1, held, Leases::kAllUsable));
  EXPECT_FALSE(leases.release(1, held, Leases::kAllUsable));
  EXPECT_EQ(parts.known(ns).lookups.looked_up(), 1U);
  EXPECT_EQ(parts.counts.unknown_releases, 1U);
  EXPECT_EQ(leases.blocks(), 0U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
