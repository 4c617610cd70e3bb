// Scrubs: they wait for reads and writes, and for a part of the store's own memory.
#include "storage/store/thread/scrubs.h"

#include "tests/storage/thread/parts.h"

namespace kvtier::storage {
namespace {

using namespace testing;

class ScrubsTest : public Parts {
 protected:
  std::uint64_t started() { return faults.started().reads; }
  void start(bool others_wait) {
    scrubs.start(others_wait);
    device->submit();
  }
};

TEST_F(ScrubsTest, NoneIsStartedWhileOthersWaitUntilOneHasWaitedLong) {
  const TestRecord record(0, 1);
  ASSERT_NO_FATAL_FAILURE(put(record, {0, 3}));
  std::vector<Told> told(2);
  for (auto& one : told) scrubs.take(scrub_of(record, {0, 3}, one));
  start(true);
  EXPECT_EQ(started(), 0U);
  faults.hold();
  pump_until([this] {
    start(true);
    return started() > 0;
  });
  EXPECT_EQ(started(), 1U) << "one at a time";
  start(true);
  EXPECT_EQ(started(), 1U);
  start(false);
  EXPECT_EQ(started(), 2U);
  faults.release();
  pump_until([this] { return scrubs.is_idle(); });
  EXPECT_TRUE(told[0].ok());
  EXPECT_TRUE(told[1].ok());
}

TEST_F(ScrubsTest, ALargerRecordWaitsUntilTheMemoryCanGrowAndIsScrubbedThen) {
  const TestRecord small(0, 1), large(1, 2);
  ASSERT_NO_FATAL_FAILURE(put(small, {0, 3}));
  ASSERT_NO_FATAL_FAILURE(put(large, {1, 3}));
  faults.hold();
  Told first, second;
  scrubs.take(scrub_of(small, {0, 3}, first));
  scrubs.take(scrub_of(large, {1, 3}, second));
  start(false);
  EXPECT_EQ(started(), 1U);
  faults.release();
  pump_until([&] {
    start(false);
    return second.times() == 1;
  });
  EXPECT_TRUE(first.ok());
  EXPECT_TRUE(second.ok());
}

TEST_F(ScrubsTest, DamageIsCountedAndAFailedTransferIsNotDamage) {
  const TestRecord record(0, 1);
  ASSERT_NO_FATAL_FAILURE(put(record, {0, 3}));
  faults.on_read(1, {.flipped_bit = 8 * 4096});
  faults.fail_read(2, EIO);
  std::vector<Told> told(2);
  for (auto& one : told) scrubs.take(scrub_of(record, {0, 3}, one));
  start(false);
  pump_until([this] { return scrubs.is_idle(); });
  EXPECT_EQ(told[0].error(), Errc::corrupt);
  EXPECT_EQ(told[1].error(), Errc::io);
  EXPECT_EQ(counters.checksum_failures, 1U);
  EXPECT_EQ(counters.scrubs_pending, 0U);
}

TEST_F(ScrubsTest, WhatIsQueuedFailsWhenTheStoreGoesOffline) {
  Told queued, late;
  scrubs.take(scrub_of(TestRecord(0, 1), {0, 3}, queued));
  availability.go_offline("broken", EIO);
  scrubs.take(scrub_of(TestRecord(0, 1), {0, 3}, late));
  tell();
  EXPECT_EQ(queued.error(), Errc::unavailable);
  EXPECT_EQ(late.error(), Errc::unavailable);
}

}  // namespace
}  // namespace kvtier::storage
