// The segments' files as the device has them.
#include "storage/store/thread/segment_files.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <string>

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

// No fault of the disk's, of whose hardware the advice spoke.
TEST_F(SegmentFilesTest, WithoutDescriptorsOtherFilesAreClosedAndItStaysOnline) {
  for (std::uint32_t segment = 0; segment < 4; ++segment)
    ASSERT_NO_FATAL_FAILURE(put(TestRecord(0, segment), {segment, 0}));
  files.close_all();
  ASSERT_TRUE(files.open(0) && files.open(1));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    few.rlim_cur = std::max<rlim_t>(few.rlim_cur, 1 + std::stoul(entry.path().filename()));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<UniqueFd> all_others;
  for (int fd = 0; (fd = ::dup(STDERR_FILENO)) >= 0;) all_others.emplace_back(fd);
  EXPECT_TRUE(files.open(2)) << "those of the others are given up";
  EXPECT_FALSE(device->is_open(FileId(0)));
  few.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto refused = files.open(3);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::unavailable);
  EXPECT_NE(refused.error().message.find("LimitNOFILE"), std::string::npos);
  EXPECT_TRUE(availability.online());
  EXPECT_TRUE(files.open(3));
}

}  // namespace
}  // namespace kvtier::storage
