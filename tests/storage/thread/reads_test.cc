// Reads into extents, and their second looks.
#include "storage/store/thread/reads.h"

#include "tests/storage/thread/parts.h"

namespace kvtier::storage {
namespace {

using namespace testing;

class ReadsTest : public Parts {
 protected:
  void start() {
    reads.start();
    device->submit();
  }
  void run_until(const std::function<bool()>& done) {
    pump_until([&] {
      start();
      return done();
    });
  }
};

TEST_F(ReadsTest, ARecordLandsInItsSlotAndItsExtentIsHeldMeanwhile) {
  const TestRecord record(1, 1);
  ASSERT_NO_FATAL_FAILURE(put(record, {0, 3}));
  Told told;
  bool forgotten = false;
  reads.take(read_of(record, {0, 3}, told));
  extents.forget({extent->id(), [&] { forgotten = true; }});
  tell();
  EXPECT_FALSE(forgotten);
  EXPECT_TRUE(reads.is_waiting());
  run_until([&] { return told.times() == 1; });
  EXPECT_TRUE(told.ok());
  EXPECT_TRUE(record.equals(extent->slot(1)));
  EXPECT_TRUE(forgotten);
  EXPECT_TRUE(reads.is_idle());
  EXPECT_EQ(counters.reads_pending, 0U);
  EXPECT_EQ(counters.records_read, 1U);
}

TEST_F(ReadsTest, WhatDoesNotHoldWhereItLandedIsLookedAtOnceMoreAndCountsAsAMemoryFault) {
  const TestRecord record(0, 1);
  ASSERT_NO_FATAL_FAILURE(put(record, {0, 3}));
  faults.on_read(1, {.flipped_bit = 8 * 4096});
  Told told;
  reads.take(read_of(record, {0, 3}, told));
  run_until([&] { return told.times() == 1; });
  EXPECT_TRUE(told.ok());
  EXPECT_TRUE(record.equals(extent->slot(1)));
  EXPECT_EQ(counters.memory_faults, 1U);
  EXPECT_EQ(counters.checksum_failures, 0U);
}

TEST_F(ReadsTest, WhatDoesNotHoldAtTheSecondLookIsCorrupt) {
  const TestRecord record(0, 1);
  ASSERT_NO_FATAL_FAILURE(put(record, {0, 3}));
  for (const std::uint64_t nth : {1U, 2U}) faults.on_read(nth, {.flipped_bit = 8 * 4096});
  Told told;
  reads.take(read_of(record, {0, 3}, told));
  run_until([&] { return told.times() == 1; });
  EXPECT_EQ(told.error(), Errc::corrupt);
  EXPECT_EQ(counters.checksum_failures, 1U);
  EXPECT_EQ(counters.read_failures, 1U);
  EXPECT_TRUE(reads.is_idle());
}

TEST_F(ReadsTest, NoMoreAreInFlightThanMayBeAndTheOthersWait) {
  const TestRecord record(0, 1);
  ASSERT_NO_FATAL_FAILURE(put(record, {0, 3}));
  const auto before = faults.started().reads;
  faults.hold();
  std::vector<Told> told(options.reads_in_flight_max + 2);
  std::uint32_t slot = 0;  // each reads into its own
  for (auto& one : told) reads.take(read_of(record, {0, 3}, one, ++slot));
  start();
  EXPECT_EQ(faults.started().reads - before, options.reads_in_flight_max);
  EXPECT_TRUE(reads.is_waiting());
  reads.fail_queued(closing_error());
  tell();
  EXPECT_EQ(told[options.reads_in_flight_max].error(), Errc::unavailable);
  EXPECT_EQ(told[0].times(), 0U) << "it is the device's until it completes";
  faults.release();
  run_until([&] { return reads.is_idle(); });
  EXPECT_TRUE(told[0].ok());
}

TEST_F(ReadsTest, OneOfAnExtentThatIsNotRegisteredOrWhileOfflineFailsAtOnce) {
  Told unknown, refused;
  ReadCommand command = read_of(TestRecord(0, 1), {0, 3}, unknown);
  command.read.extent = ExtentId(7);
  reads.take(std::move(command));
  availability.go_offline("broken", EIO);
  reads.take(read_of(TestRecord(0, 1), {0, 3}, refused));
  tell();
  EXPECT_EQ(unknown.error(), Errc::invalid);
  EXPECT_EQ(refused.error(), Errc::unavailable);
  EXPECT_EQ(counters.read_failures, 2U);
}

}  // namespace
}  // namespace kvtier::storage
