// Writes from extents: their places cleared, sealed, written, indexed.
#include "storage/store/thread/writes.h"

#include "tests/storage/thread/parts.h"

namespace kvtier::storage {
namespace {

using namespace testing;

class WritesTest : public Parts {
 protected:
  std::shared_ptr<PendingErase> erase(const TestRecord& record, Told& told) {
    EraseCommand command{{record.identity.key}, told.done()};
    auto pending = erases.begin(command);
    for (const Key& key : command.keys) writes.overtake(key, pending);
    erases.commit(pending, std::move(command.keys));
    return pending;
  }
};

TEST_F(WritesTest, ARecordIsIndexedAfterItIsWrittenAndItsExtentIsHeldUntilThen) {
  const TestRecord record(1, 1);
  Told told;
  bool forgotten = false;
  writes.take(write_of(record, {0, 3}, told));
  extents.forget({extent->id(), [&] { forgotten = true; }});
  faults.hold();
  start_writes();
  changes.commit();
  EXPECT_FALSE(is_indexed(record));
  EXPECT_EQ(writes.pending(), 1U);
  faults.release();
  pump_until([&] { return told.times() == 1; });
  EXPECT_TRUE(told.ok());
  EXPECT_TRUE(is_indexed(record));
  EXPECT_TRUE(forgotten);
  EXPECT_EQ(files.take_unsynced(), std::vector<std::uint32_t>{0});
  EXPECT_EQ(counters.records_written, 1U);
}

TEST_F(WritesTest, OneThatAnEraseOvertookInFlightIsNotIndexedAndTheEraseWaitsForItsEnd) {
  const TestRecord record(0, 1);
  Told written, erased;
  writes.take(write_of(record, {0, 3}, written));
  faults.hold();
  start_writes();
  erase(record, erased);
  changes.commit();
  tell();
  EXPECT_EQ(erased.times(), 0U) << "the slot is still being written to";
  faults.release();
  pump_until([&] { return written.times() == 1; });
  EXPECT_EQ(written.error(), Errc::not_found);
  EXPECT_TRUE(erased.ok());
  EXPECT_FALSE(is_indexed(record));
}

TEST_F(WritesTest, OneThatAnEraseOvertookInTheQueueIsNeverStarted) {
  const TestRecord record(0, 1);
  Told written, erased;
  writes.take(write_of(record, {0, 3}, written));
  erase(record, erased);
  start_writes();
  pump();
  EXPECT_EQ(written.error(), Errc::not_found);
  EXPECT_TRUE(erased.ok());
  EXPECT_EQ(faults.started().writes, 0U);
}

TEST_F(WritesTest, WhileReadsWaitTheyKeepToAQuarterOfTheirShare) {
  std::vector<Told> told(options.writes_in_flight_max);
  faults.hold();
  for (std::uint32_t n = 0; n < told.size(); ++n)
    writes.take(write_of(TestRecord(0, n), {0, n}, told[n], n));
  writes.seal_ahead();
  writes.start(true);
  EXPECT_EQ(faults.started().writes, options.writes_in_flight_max / 4 + 1);
  EXPECT_TRUE(writes.is_waiting());
  writes.start(false);
  EXPECT_EQ(faults.started().writes, options.writes_in_flight_max);
  faults.release();
  pump_until([this] { return writes.is_idle(); });
  for (const auto& one : told) EXPECT_TRUE(one.ok());
}

TEST_F(WritesTest, ARecordThatIsNotTheOneItSaysFailsBeforeAnythingIsWritten) {
  Told told;
  WriteCommand command = write_of(TestRecord(0, 1), {0, 3}, told);
  command.write.identity.key = TestRecord(0, 2).identity.key;
  writes.take(std::move(command));
  start_writes();
  tell();
  EXPECT_EQ(told.error(), Errc::corrupt);
  EXPECT_EQ(faults.started().writes, 0U);
  EXPECT_EQ(counters.write_failures, 1U);
}

TEST_F(WritesTest, WhatItReplacesIsOutOfTheIndexBeforeItIsStarted) {
  const TestRecord old(0, 1), next(0, 2);
  ASSERT_NO_FATAL_FAILURE(put(old, {0, 3}));
  Told told;
  WriteCommand command = write_of(next, {0, 3}, told);
  command.write.replaces = old.identity.key;
  writes.take(std::move(command));
  changes.commit();
  EXPECT_FALSE(is_indexed(old));
  EXPECT_EQ(faults.started().writes, 1U);
  start_writes();
  pump_until([&] { return told.times() == 1; });
  EXPECT_TRUE(told.ok());
  EXPECT_TRUE(is_indexed(next));
}

TEST_F(WritesTest, WhatIsSealedWhileTheStoreClosesFails) {
  Told told;
  writes.take(write_of(TestRecord(0, 1), {0, 3}, told));
  shared.closing = true;
  writes.seal_ahead();
  tell();
  EXPECT_EQ(told.error(), Errc::unavailable);
  EXPECT_EQ(writes.pending(), 0U);
}

TEST_F(WritesTest, AnEntryThatCouldNotBeCommittedIsErasedOnTheWayBack) {
  const TestRecord record(0, 1);
  Told told;
  writes.take(write_of(record, {0, 3}, told));
  faults.hold();
  start_writes();
  index_files.break_down(EIO);
  faults.release();
  pump_until([&] { return told.times() == 1; });
  EXPECT_EQ(told.error(), Errc::unavailable);
  index_files.mend();
  ASSERT_TRUE(changes.revive());
  ASSERT_TRUE(changes.make_up());
  EXPECT_FALSE(is_indexed(record));
}

}  // namespace
}  // namespace kvtier::storage
