// Flushes: after what came before them, the files first, then the index.
#include "storage/store/thread/flushes.h"

#include <algorithm>

#include "tests/storage/thread/parts.h"

namespace kvtier::storage {
namespace {

using namespace testing;

class FlushesTest : public Parts {
 protected:
  void flush(Told& told) {
    flushes.take({told.done()}, writes.pending() + erases.pending());
    flushes.advance();
    tell();
  }
  std::uint64_t syncs() const { return device->counters().syncs; }
};

TEST_F(FlushesTest, OneWaitsForTheWritesBeforeItAndNotForThoseAfterIt) {
  faults.hold();
  Told before, after, flushed;
  writes.take(write_of(TestRecord(0, 1), {0, 1}, before, 0));
  flush(flushed);
  writes.take(write_of(TestRecord(0, 2), {0, 2}, after, 1));
  start_writes();
  EXPECT_EQ(syncs(), 0U);
  faults.release();
  pump_until([&] { return flushed.times() == 1; });
  EXPECT_TRUE(before.ok());
  EXPECT_TRUE(flushed.ok());
  pump_until([&] { return after.times() == 1; });
  EXPECT_TRUE(flushes.is_idle());
}

TEST_F(FlushesTest, EachFileThatWasWrittenToIsSyncedOnce) {
  ASSERT_NO_FATAL_FAILURE(put(TestRecord(0, 1), {0, 1}));
  ASSERT_NO_FATAL_FAILURE(put(TestRecord(0, 2), {1, 1}));
  ASSERT_NO_FATAL_FAILURE(put(TestRecord(0, 3), {1, 2}));
  Told first, second;
  flush(first);
  pump_until([&] { return first.times() == 1; });
  EXPECT_TRUE(first.ok());
  EXPECT_EQ(syncs(), 2U);
  flush(second);
  EXPECT_TRUE(second.ok()) << "nothing was written since";
  EXPECT_EQ(syncs(), 2U);
}

// The next sync says nothing of what the failed one lost: it was ok, with nothing written again.
TEST_F(FlushesTest, WhatAFailedSyncCoveredIsGivenUpAndToldOfBeforeItsFlushFails) {
  const TestRecord synced(0, 1), lost(0, 2), elsewhere(0, 3), later(0, 4);
  std::vector<LostRecord> told_of;
  flushes.tell([&](const std::vector<LostRecord>& records) { told_of = records; });
  ASSERT_NO_FATAL_FAILURE(put(synced, {0, 1}));
  Told first, failed, flushed;
  flush(first);
  pump_until([&] { return first.times() == 1; });
  ASSERT_NO_FATAL_FAILURE(put(lost, {0, 2}));
  faults.break_syncs(EIO);
  flushes.take({[&, done = failed.done()](const Result<void>& result) {
                 EXPECT_FALSE(told_of.empty());
                 EXPECT_FALSE(is_indexed(lost));
                 done(result);
               }},
               0);
  flushes.advance();
  pump_until([&] { return failed.times() == 1; });
  EXPECT_EQ(failed.error(), Errc::io);
  EXPECT_EQ(told_of, (std::vector<LostRecord>{{lost.identity.key, {0, 2}}}));
  EXPECT_TRUE(is_indexed(synced)) << "a sync had covered it";
  EXPECT_EQ(counters.records_given_up, 1U);
  faults.mend();
  ASSERT_NO_FATAL_FAILURE(put(elsewhere, {1, 1}));
  ASSERT_NO_FATAL_FAILURE(put(later, {0, 2}));
  flush(flushed);
  pump_until([&] { return flushed.times() == 1; });
  EXPECT_TRUE(flushed.ok());
  EXPECT_TRUE(is_indexed(elsewhere) && is_indexed(later));
}

TEST_F(FlushesTest, WhatLeftTheIndexBeforeASyncFailedIsNotGivenUpWhereItIsNow) {
  const TestRecord erased(0, 1), moved(0, 2), replaced(0, 3), by(0, 4);
  std::vector<LostRecord> told_of;
  flushes.tell([&](const std::vector<LostRecord>& records) { told_of = records; });
  for (const auto* record : {&erased, &moved, &replaced})
    ASSERT_NO_FATAL_FAILURE(put(*record, {0, record->identity.block_index + 1}));
  EraseCommand erase{{erased.identity.key, moved.identity.key}, [](const Result<void>&) {}};
  const auto pending = erases.begin(erase);
  erases.commit(pending, std::move(erase.keys));
  changes.commit();
  ASSERT_NO_FATAL_FAILURE(put(moved, {1, 1}));
  Told over;
  WriteCommand write = write_of(by, {0, replaced.identity.block_index + 1}, over);
  write.write.replaces = replaced.identity.key;
  writes.take(std::move(write));
  start_writes();
  pump_until([&] { return over.times() == 1; });
  // Of the two files the first to be synced is the last.
  faults.break_syncs(EIO);
  Told failed;
  flush(failed);
  pump_until([&] { return failed.times() == 1; });
  std::ranges::sort(told_of, {}, [](const LostRecord& record) { return record.at.segment; });
  EXPECT_EQ(told_of,
            (std::vector<LostRecord>{{by.identity.key, {0, replaced.identity.block_index + 1}},
                                     {moved.identity.key, {1, 1}}}));
}

// The sync may have lost it, and the next one would not say so.
TEST_F(FlushesTest, AWriteThatWasUnderWayWhileASyncOfItsSegmentFailedIsNotIndexed) {
  ASSERT_NO_FATAL_FAILURE(put(TestRecord(0, 1), {0, 1}));
  faults.break_syncs(EIO);
  Told failed, written, elsewhere;
  flush(failed);
  faults.hold();
  writes.take(write_of(TestRecord(0, 2), {0, 2}, written, 1));
  writes.take(write_of(TestRecord(0, 3), {1, 1}, elsewhere, 2));
  pump_until([&] {
    start_writes();
    return faults.started().writes == 3;
  });
  faults.release();
  pump_until([&] { return written.times() == 1 && elsewhere.times() == 1; });
  EXPECT_EQ(failed.error(), Errc::io);
  EXPECT_EQ(written.error(), Errc::unavailable);
  EXPECT_FALSE(is_indexed(TestRecord(0, 2)));
  EXPECT_TRUE(elsewhere.ok());
}

TEST_F(FlushesTest, TheyEndInTheirOrder) {
  ASSERT_NO_FATAL_FAILURE(put(TestRecord(0, 1), {0, 1}));
  std::vector<int> order;
  for (const int n : {1, 2, 3})
    flushes.take({[&order, n](const Result<void>&) { order.push_back(n); }}, 0);
  flushes.advance();
  pump_until([&] { return order.size() == 3; });
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST_F(FlushesTest, OfflineItFailsAndTheFilesAreLeftForTheFirstOneAfterTheReturn) {
  ASSERT_NO_FATAL_FAILURE(put(TestRecord(0, 1), {0, 1}));
  availability.go_offline("broken", EIO);
  Told failed;
  flush(failed);
  EXPECT_EQ(failed.error(), Errc::unavailable);
  EXPECT_EQ(files.take_unsynced(), std::vector<std::uint32_t>{0});
}

}  // namespace
}  // namespace kvtier::storage
