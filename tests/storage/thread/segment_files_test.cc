// The segments' files as the device has them.
#include "storage/store/thread/segment_files.h"

#include "tests/storage/thread/parts.h"

namespace kvtier::storage {
namespace {

using namespace testing;
using SegmentFilesTest = Parts;

TEST_F(SegmentFilesTest, ASegmentIsMadeForTheFirstWriteAndReadOnlyWithItsOwnSize) {
  EXPECT_EQ(files.open_to_read({3, 0}, 8_KiB).error().code, Errc::corrupt);
  ASSERT_TRUE(files.open_to_write({3, 0}, 8_KiB));
  EXPECT_TRUE(device->is_open(FileId(3)));
  EXPECT_TRUE(files.open_to_read({3, 0}, 8_KiB));
  EXPECT_EQ(files.open_to_read({3, 0}, 20_KiB).error().code, Errc::corrupt);
  EXPECT_TRUE(availability.online());
}

TEST_F(SegmentFilesTest, AFileThatIsGoneTakesTheStoreOffline) {
  ASSERT_TRUE(files.open_to_write({0, 0}, 8_KiB));
  files.close_all();
  EXPECT_FALSE(device->is_open(FileId(0)));
  std::filesystem::remove(segments->path_of(0));
  EXPECT_EQ(files.open_to_read({0, 0}, 8_KiB).error().code, Errc::unavailable);
  EXPECT_FALSE(availability.online());
}

TEST_F(SegmentFilesTest, WhatWasWrittenToIsTakenByOneFlushAndNotedAgainByWhoCouldNotSyncIt) {
  files.note_written(2);
  files.note_written(1);
  files.note_written(2);
  EXPECT_EQ(files.take_unsynced(), (std::vector<std::uint32_t>{1, 2}));
  EXPECT_TRUE(files.take_unsynced().empty());
  files.note_written(2);
  EXPECT_EQ(files.take_unsynced(), std::vector<std::uint32_t>{2});
}

TEST_F(SegmentFilesTest, OnTheWayBackAFileThatIsNotThereAnyMoreHasNothingToSync) {
  ASSERT_TRUE(files.open_to_write({0, 0}, 8_KiB));
  ASSERT_TRUE(files.open_to_write({1, 0}, 8_KiB));
  files.note_written(0);
  files.note_written(1);
  std::filesystem::remove(segments->path_of(1));
  ASSERT_TRUE(files.look_again());
  EXPECT_EQ(files.take_unsynced(), std::vector<std::uint32_t>{0});
}

}  // namespace
}  // namespace kvtier::storage
