// Flushes: after what came before them, the files first, then the index.
#include "storage/store/thread/flushes.h"

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

TEST_F(FlushesTest, AFileWhoseSyncFailedIsSyncedByTheNextOne) {
  ASSERT_NO_FATAL_FAILURE(put(TestRecord(0, 1), {0, 1}));
  faults.break_down(EIO);
  Told failed, flushed;
  flush(failed);
  pump_until([&] { return failed.times() == 1; });
  EXPECT_EQ(failed.error(), Errc::io);
  faults.mend();
  flush(flushed);
  pump_until([&] { return flushed.times() == 1; });
  EXPECT_TRUE(flushed.ok());
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
