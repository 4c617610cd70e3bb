// Tests of places that failed, and the places that a store remembers as bad.
#include "storage/store/bad_places.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <thread>

#include "storage/index/segments.h"
#include "tests/storage/faults/faulty_device.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;

// ---- what is remembered

class BadPlacesTest : public ::testing::Test {
 protected:
  BadPlaces open() {
    auto opened = BadPlaces::open(file_);
    EXPECT_TRUE(opened) << opened.error().message;
    return std::move(*opened);
  }
  std::vector<BadPlace> read() {
    const BadPlaces places = open();
    return {places.all().begin(), places.all().end()};
  }

  TestDirectory directory_;
  const std::filesystem::path file_ = directory_.path() / "BAD";
  const BadPlace a_{1, 4096, 8192}, b_{2, 0, 4096}, c_{3, 12288, 4096};
};

TEST_F(BadPlacesTest, WithoutAFileThereIsNoneAndNoFileIsMade) {
  EXPECT_TRUE(read().empty());
  EXPECT_FALSE(std::filesystem::exists(file_));
}

TEST_F(BadPlacesTest, WhatWasAddedIsThereInOrder) {
  {
    BadPlaces places = open();
    ASSERT_TRUE(places.add(a_));
    ASSERT_TRUE(places.add(b_));
  }
  {
    BadPlaces places = open();
    ASSERT_TRUE(places.add(c_));
  }
  EXPECT_EQ(read(), (std::vector{a_, b_, c_}));
}

TEST_F(BadPlacesTest, DamagedEntryIsPassedOverAndOneCutShortIsWrittenOver) {
  {
    BadPlaces places = open();
    for (const BadPlace& place : {a_, b_}) ASSERT_TRUE(places.add(place));
  }
  {
    std::fstream file(file_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(9);
    file.put('x');
    file.seekp(0, std::ios::end);
    file << "half of one";
  }
  EXPECT_EQ(read(), std::vector{b_});
  {
    BadPlaces places = open();
    ASSERT_TRUE(places.add(c_));
  }
  EXPECT_EQ(read(), (std::vector{b_, c_}));
}

TEST_F(BadPlacesTest, MoreThanThereCanBeAreRefusedByName) {
  BadPlaces places = open();
  ASSERT_TRUE(places.add(a_));
  std::ofstream(file_, std::ios::app) << std::string((BadPlaces::kMost - 1) * 32, '\0');
  BadPlaces full = open();
  const auto added = full.add(b_);
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code, Errc::no_space);
  EXPECT_NE(added.error().message.find(file_.string()), std::string::npos);
}

// ---- tests of places

class PlaceTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kSlotBytes = 3_MiB - 8_KiB;  // some pieces, the last a short one

  static RecordStoreOptions options(const std::filesystem::path& directory) {
    auto options = small_options(directory);
    options.segment_bytes = 8_MiB;
    options.probe_first = std::chrono::milliseconds(20);
    return options;
  }
  void SetUp() override {
    auto write = store_->write_of(record_, {0, 0});
    write.slot_bytes = kSlotBytes;
    ASSERT_TRUE(store_->wait_for([&](auto done) { return (**store_).write(write, done); }));
  }
  Result<void> test(DiskLocation at) {
    return store_->wait_for(
        [&](auto done) { return (**store_).test_place(at, kSlotBytes, std::move(done)); });
  }
  std::vector<BadPlace> after_a_restart() {
    store_.reset();
    store_.emplace(options(directory_.path()));
    return (**store_).bad_places();
  }

  const TestRecord record_{0, 1};
  const DiskLocation at_{0, 1};
  Faults faults_;
  TestDirectory directory_;
  std::optional<TestStore> store_{
      std::in_place, options(directory_.path()),
      make_faulty_device(make_block_device({.depth = 64, .files = 64, .buffers = 5}), faults_)};
};

TEST_F(PlaceTest, PlaceThatHoldsIsGoodAndNothingIsRemembered) {
  const auto before = faults_.started();
  EXPECT_TRUE(test(at_));
  EXPECT_EQ(faults_.started().writes - before.writes, 3U);
  EXPECT_EQ(faults_.started().reads - before.reads, 3U);
  EXPECT_TRUE(after_a_restart().empty());
}

TEST_F(PlaceTest, PlaceThatCannotBeReadOrWrittenIsBadAlsoAfterARestart) {
  faults_.fail_read(faults_.started().reads + 3, EIO);  // its last piece
  EXPECT_EQ(test(at_).error().code, Errc::io);
  EXPECT_TRUE(test(at_)) << "only that once";
  faults_.fail_write(faults_.started().writes + 2, EIO);
  EXPECT_EQ(test({0, 0}).error().code, Errc::io);
  EXPECT_TRUE((**store_).bad_places().empty()) << "of the ones before it alone";
  EXPECT_EQ(after_a_restart(),
            (std::vector{place_of(at_, kSlotBytes), place_of({0, 0}, kSlotBytes)}));
}

TEST_F(PlaceTest, WhatIsReadIsComparedWithWhatWasWritten) {
  faults_.on_read(faults_.started().reads + 1, {.flipped_bit = 8 * 5000 + 3});
  EXPECT_EQ(test(at_).error().code, Errc::corrupt);
  faults_.on_write(faults_.started().writes + 2, {.only_bytes = 8192});
  EXPECT_EQ(test(at_).error().code, Errc::corrupt);
  faults_.on_read(faults_.started().reads + 2, {.moved_by = 4096});
  EXPECT_EQ(test(at_).error().code, Errc::corrupt);
  EXPECT_TRUE(test(at_));
}

TEST_F(PlaceTest, RecordsBesideItStayAsTheyAre) {
  EXPECT_TRUE(test(at_));
  auto read = store_->read_of(record_, {0, 0});
  read.slot_bytes = kSlotBytes;
  EXPECT_TRUE(store_->wait_for([&](auto done) { return (**store_).read(read, done); }));
}

// They go where something has failed already.
TEST_F(PlaceTest, TestsThatFailSayNothingOfTheDevicesHealth) {
  for (int i = 0; i < 12; ++i) {
    faults_.fail_write(faults_.started().writes + 1, EIO);
    EXPECT_EQ(test(at_).error().code, Errc::io);
  }
  auto read = store_->read_of(record_, {0, 0});
  read.slot_bytes = kSlotBytes;
  EXPECT_TRUE(store_->wait_for([&](auto done) { return (**store_).read(read, done); }));
  EXPECT_TRUE(test(at_));
}

TEST_F(PlaceTest, OfADeviceThatIsGoneNothingIsRemembered) {
  store_->watch_health();
  faults_.hold();
  std::vector<Result<void>> ended;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE((**store_).test_place(at_, kSlotBytes,
                                      [&](Result<void> result) { ended.push_back(result); }));
  }
  faults_.wait_for_started(2);  // the record's, and a piece
  faults_.break_down(ENODEV);   // which is believed at once
  faults_.release();
  store_->control().run_until([&] { return ended.size() == 3; });
  for (const auto& result : ended) EXPECT_EQ(result.error().code, Errc::unavailable);
  faults_.mend();
  store_->wait_until(true);
  EXPECT_TRUE(test(at_));
  EXPECT_TRUE(after_a_restart().empty());
}

TEST_F(PlaceTest, WhatWaitsWhenTheStoreClosesIsTold) {
  faults_.hold();
  std::vector<Result<void>> ended;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE((**store_).test_place(at_, kSlotBytes,
                                      [&](Result<void> result) { ended.push_back(result); }));
  }
  faults_.wait_for_started(2);
  const std::jthread release([&] { faults_.release(); });
  (**store_).close();
  store_->control().run_until([&] { return ended.size() == 3; });
  for (const auto& result : ended) EXPECT_EQ(result.error().code, Errc::unavailable);
}

TEST_F(PlaceTest, MoreThanTheBoundAtOnceAreRefused) {
  faults_.hold();
  std::uint32_t ended = 0;
  const auto begin = [&] {
    return (**store_).test_place(at_, kSlotBytes, [&](Result<void>) { ++ended; });
  };
  for (std::uint32_t i = 0; i < kPlaceTestsMax; ++i) ASSERT_TRUE(begin());
  EXPECT_EQ(begin().error().code, Errc::no_space);
  faults_.release();
  store_->control().run_until([&] { return ended == kPlaceTestsMax; });
  EXPECT_TRUE(begin());
  store_->control().run_until([&] { return ended == kPlaceTestsMax + 1; });
}

TEST_F(PlaceTest, OfWhatIsNoSlotNothingIsKnown) {
  EXPECT_EQ(test({0, 100}).error().code, Errc::unavailable);
  EXPECT_EQ(test({5, 0}).error().code, Errc::unavailable);
}

}  // namespace
}  // namespace kvtier::storage
