// What the daemon is told from time to time.
#include "client/session/thread/reports.h"

#include "client/session/limits.h"
#include "tests/client/thread/parts.h"

namespace kvtier::session {
namespace {

class ReportsTest : public SessionParts {
 protected:
  // Sends one and looks into it.
  void report(const std::function<void(wire::Report::Reader)>& look) {
    reports.send(Clock::now());
    int heard_of = 0;
    hear([&](wire::Message::Reader m) {
      ASSERT_EQ(m.which(), Which::REPORT);
      look(m.getReport());
      ++heard_of;
    });
    EXPECT_EQ(heard_of, 1);
  }
};

TEST_F(ReportsTest, EachCountIsReportedOnce) {
  Counters::add(counters.header_faults, 2);
  counters.drop(DropReason::disconnected, 3);
  counters.loads[0].add(std::chrono::milliseconds(1), 4096);
  const auto reason = static_cast<unsigned>(DropReason::disconnected);
  report([&](wire::Report::Reader r) {
    EXPECT_EQ(r.getHeaderFaults(), 2U);
    EXPECT_EQ(r.getDropped()[reason], 3U);
    EXPECT_EQ(r.getLoads()[0].getBytes(), 4096U);
  });
  Counters::add(counters.header_faults);
  report([&](wire::Report::Reader r) {
    EXPECT_EQ(r.getHeaderFaults(), 1U);
    EXPECT_EQ(r.getDropped()[reason], 0U);
    EXPECT_EQ(r.getLoads()[0].getBytes(), 0U);
  });
}

TEST_F(ReportsTest, LookupsWithoutALeaseAreReportedOfNamespacesThatAreOpen) {
  const auto ns = opened();
  const auto other = namespaces.find_or_add(test::small_namespace(StorageFormat::bf16), 8).first;
  ns->missed += 5;
  other->missed += 6;
  report([](wire::Report::Reader r) {
    ASSERT_EQ(r.getMissed().size(), 1U);
    EXPECT_EQ(r.getMissed()[0].getNs(), kHandle);
    EXPECT_EQ(r.getMissed()[0].getBlocks(), 5U);
  });
  EXPECT_EQ(other->missed, 6U) << "kept until it is open";
}

TEST_F(ReportsTest, BadKeysAreReportedOnceAndBounded) {
  for (std::size_t n = 0; n < kBadKeysMax + 10; ++n) reports.note_bad({});
  report([](wire::Report::Reader r) { EXPECT_EQ(r.getBadKeys().size(), kBadKeysMax); });
  report([](wire::Report::Reader r) { EXPECT_EQ(r.getBadKeys().size(), 0U); });
}

TEST_F(ReportsTest, OneIsDueEveryThirdOfTheLeaseTimeOrWhenItIsWanted) {
  const auto now = Clock::now();
  reports.welcomed(0, now);
  EXPECT_FALSE(reports.is_due(now + std::chrono::seconds(19)));
  EXPECT_TRUE(reports.is_due(now + std::chrono::seconds(20)));
  reports.want_soon();
  EXPECT_TRUE(reports.is_due(now));
  reports.send(now);
  EXPECT_FALSE(reports.is_due(now));
  EXPECT_FALSE(reports.wanted_soon());
}

}  // namespace
}  // namespace kvtier::session
