// Erases from the index.
#include "storage/store/thread/erases.h"

#include "tests/storage/thread/parts.h"

namespace kvtier::storage {
namespace {

using namespace testing;

class ErasesTest : public Parts {
 protected:
  std::shared_ptr<PendingErase> erase(const TestRecord& record, Told& told, std::size_t parts = 1) {
    EraseCommand command{{record.identity.key}, told.done()};
    auto pending = erases.begin(command);
    pending->parts = parts;
    erases.commit(pending, std::move(command.keys));
    return pending;
  }
};

TEST_F(ErasesTest, OneIsDoneWhenItIsCommitted) {
  ASSERT_NO_FATAL_FAILURE(put(TestRecord(0, 1), {0, 1}));
  Told told;
  erase(TestRecord(0, 1), told);
  tell();
  EXPECT_EQ(told.times(), 0U);
  EXPECT_EQ(erases.pending(), 1U);
  pump();
  EXPECT_TRUE(told.ok());
  EXPECT_EQ(erases.pending(), 0U);
  EXPECT_FALSE(is_indexed(TestRecord(0, 1)));
}

TEST_F(ErasesTest, OneThatOvertookAWriteIsDoneWhenBothAre) {
  Told told;
  const auto pending = erase(TestRecord(0, 1), told, 2);
  pump();
  EXPECT_EQ(told.times(), 0U);
  erases.end_part(*pending);
  tell();
  EXPECT_TRUE(told.ok());
}

TEST_F(ErasesTest, AFlushThatCameAfterItWaitsForIt) {
  Told erased, flushed;
  erase(TestRecord(0, 1), erased);
  flushes.take({flushed.done()}, erases.pending());
  flushes.advance();
  tell();
  EXPECT_EQ(flushed.times(), 0U);
  pump();
  EXPECT_TRUE(erased.ok());
  EXPECT_TRUE(flushed.ok());
}

TEST_F(ErasesTest, OfflineItFailsAndTheEntryIsOwedToTheReturn) {
  ASSERT_NO_FATAL_FAILURE(put(TestRecord(0, 1), {0, 1}));
  availability.go_offline("broken", EIO);
  Told told;
  erase(TestRecord(0, 1), told);
  tell();
  EXPECT_EQ(told.error(), Errc::unavailable);
  EXPECT_TRUE(is_indexed(TestRecord(0, 1)));
  ASSERT_TRUE(changes.make_up());
  EXPECT_FALSE(is_indexed(TestRecord(0, 1)));
}

TEST_F(ErasesTest, OneWhoseCommitFailsIsOwedToTheReturnToo) {
  ASSERT_NO_FATAL_FAILURE(put(TestRecord(0, 1), {0, 1}));
  index_files.break_down(EIO);
  Told told;
  erase(TestRecord(0, 1), told);
  pump();
  EXPECT_EQ(told.error(), Errc::unavailable);
  index_files.mend();
  ASSERT_TRUE(changes.revive());
  ASSERT_TRUE(changes.make_up());
  EXPECT_FALSE(is_indexed(TestRecord(0, 1)));
}

}  // namespace
}  // namespace kvtier::storage
