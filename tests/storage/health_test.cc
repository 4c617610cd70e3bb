// A device or directory that fails as a whole: the store goes offline, says so, and comes back.
#include "storage/store/health.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/storage/faults/faulty_device.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

class HealthTest : public ::testing::Test {
 protected:
  struct Change {
    bool online;
    std::string why;
    DiskState state;
  };

  HealthTest() {
    options_.probe_first = 2ms;
    options_.probe_max = 20ms;
    options_.check_interval = 2ms;
    store_.emplace(
        options_,
        make_faulty_device(make_block_device({.depth = 64, .files = 64, .buffers = 4}), faults_));
    (*store_)->on_health([this](DiskState state, const std::string& why) {
      changes_.push_back({state == DiskState::online, why, state});
    });
  }

  TestStore& store() { return *store_; }
  void wait_for_changes(std::size_t count) {
    store().control().run_until([&] { return changes_.size() >= count; });
  }
  void expect_works(std::uint32_t number) {
    const TestRecord record(0, number);
    EXPECT_TRUE(store().write(record, {2, number}));
    const auto found = store().read(record, {2, number});
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_TRUE(record.equals(*found));
    EXPECT_TRUE(store().flush());
  }

  Faults faults_;
  TestDirectory directory_;
  RecordStoreOptions options_ = small_options(directory_.path() / "store");
  std::vector<Change> changes_;
  std::optional<TestStore> store_;
};

TEST_F(HealthTest, DeviceThatFailsEveryTransferGoesOfflineAndComesBackByItself) {
  for (std::uint32_t n = 0; n < 8; ++n) ASSERT_TRUE(store().write(TestRecord(0, n), {0, n}));
  faults_.break_down(EIO);
  for (std::uint32_t n = 0; n < Health::kPlacesMax; ++n) {
    EXPECT_FALSE(store().read(TestRecord(0, n), {0, n}));
  }
  wait_for_changes(1);
  EXPECT_FALSE(changes_[0].online);
  EXPECT_NE(changes_[0].why.find("dmesg"), std::string::npos) << changes_[0].why;
  faults_.mend();
  wait_for_changes(2);
  EXPECT_TRUE(changes_[1].online);
  expect_works(100);
  EXPECT_TRUE(store().read(TestRecord(0, 1), {0, 1}));
}

TEST_F(HealthTest, OneRecordThatCannotBeReadNeverTakesTheTierOffline) {
  for (std::uint32_t n = 0; n < 2; ++n) ASSERT_TRUE(store().write(TestRecord(0, n), {0, n}));
  for (std::uint64_t n = 1; n <= 20; ++n) {
    faults_.fail_read(n, EIO);
    EXPECT_EQ(store().read(TestRecord(0, 0), {0, 0}).error().code, Errc::io);
  }
  EXPECT_TRUE(store().read(TestRecord(0, 1), {0, 1}));
  EXPECT_TRUE(changes_.empty());
}

TEST_F(HealthTest, CorruptRecordsNeverTakeTheTierOffline) {
  for (std::uint32_t n = 0; n < 20; ++n) {
    ASSERT_TRUE(store().write(TestRecord(0, n), {0, n}));
    // It is read twice before it is believed.
    faults_.on_read(2 * n + 1, {.flipped_bit = 8 * 5000});
    faults_.on_read(2 * n + 2, {.flipped_bit = 8 * 5000});
    EXPECT_EQ(store().read(TestRecord(0, n), {0, n}).error().code, Errc::corrupt);
  }
  EXPECT_TRUE(changes_.empty());
}

TEST_F(HealthTest, FullOrReadOnlyOrVanishedDeviceGoesOfflineAtItsFirstFailure) {
  std::uint32_t number = 0;
  for (const int error : {ENOSPC, EROFS, ENODEV, ESTALE}) {
    SCOPED_TRACE(error);
    changes_.clear();
    faults_.break_down(error);
    EXPECT_FALSE(store().write(TestRecord(0, number), {0, number}));
    faults_.mend();
    wait_for_changes(2);
    EXPECT_FALSE(changes_[0].online);
    EXPECT_TRUE(changes_[1].online);
    expect_works(++number);
  }
}

TEST_F(HealthTest, WhatIsInFlightOrQueuedFailsWithUnavailableAndSoDoesWhatComesAfter) {
  ASSERT_TRUE(store().write(TestRecord(0, 0), {0, 0}));
  faults_.hold();
  faults_.break_down(EROFS);
  std::vector<Errc> ended;
  for (std::uint32_t n = 1; n <= 60; ++n) {
    ASSERT_TRUE(store()->write(store().write_of(TestRecord(0, n), {0, n}, n),
                               [&](Result<void> result) { ended.push_back(result.error().code); }));
  }
  faults_.release();
  store().control().run_until([&] { return ended.size() == 60; });
  for (const Errc code : ended) EXPECT_EQ(code, Errc::unavailable);
  ASSERT_FALSE(changes_.empty());
  EXPECT_FALSE(changes_[0].online);
  faults_.mend();
  wait_for_changes(2);
  expect_works(70);
}

TEST_F(HealthTest, DirectoryMovedAwayTakesTheTierOfflineAndMovedBackBringsItBack) {
  ASSERT_TRUE(store().write(TestRecord(0, 1), {0, 1}));
  ASSERT_TRUE(store().flush());
  const fs::path away = directory_.path() / "away";
  fs::rename(options_.directory, away);
  wait_for_changes(1);
  EXPECT_FALSE(changes_[0].online);
  EXPECT_NE(changes_[0].why.find("mount it again"), std::string::npos) << changes_[0].why;
  EXPECT_EQ(store().read(TestRecord(0, 1), {0, 1}).error().code, Errc::unavailable);
  EXPECT_EQ(store().write(TestRecord(0, 2), {0, 2}).error().code, Errc::unavailable);
  EXPECT_EQ(store().flush().error().code, Errc::unavailable);
  EXPECT_FALSE(fs::exists(options_.directory));
  fs::rename(away, options_.directory);
  wait_for_changes(2);
  expect_works(3);
  EXPECT_TRUE(store().read(TestRecord(0, 1), {0, 1}));
}

TEST_F(HealthTest, AnotherDirectoryInItsPlaceIsNotTouched) {
  fs::rename(options_.directory, directory_.path() / "away");
  fs::create_directories(options_.directory);
  wait_for_changes(1);
  EXPECT_FALSE(changes_[0].online);
  std::this_thread::yield();
  EXPECT_TRUE(fs::is_empty(options_.directory));
  fs::remove(options_.directory);
  fs::rename(directory_.path() / "away", options_.directory);
  wait_for_changes(2);
  expect_works(3);
}

TEST_F(HealthTest, EraseAndNamespaceOfflineAreMadeUpForBeforeTheReturn) {
  const TestRecord kept(0, 1), erased(0, 2);
  ASSERT_TRUE(store().write(kept, {0, 1}));
  ASSERT_TRUE(store().write(erased, {0, 2}));
  fs::rename(options_.directory, directory_.path() / "away");
  wait_for_changes(1);
  EXPECT_EQ(store().erase({erased.identity.key}).error().code, Errc::unavailable);
  store()->remember_namespace(kept.identity.ns, encode(test_namespace(0)));
  fs::rename(directory_.path() / "away", options_.directory);
  wait_for_changes(2);
  store_.reset();
  TestStore again(options_);
  const auto entries = again.recover();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].identity.key, kept.identity.key);
  EXPECT_EQ(again->namespaces()->size(), 1u);
}

TEST_F(HealthTest, LostSegmentFileIsForgottenAndTheRestGoesOn) {
  ASSERT_TRUE(store().write(TestRecord(0, 1), {0, 1}));
  ASSERT_TRUE(store().write(TestRecord(1, 2), {1, 2}));
  fs::remove(options_.directory / "segments" / "000000.seg");
  faults_.break_down(ENODEV);
  EXPECT_FALSE(store().write(TestRecord(1, 3), {1, 3}));
  faults_.mend();
  wait_for_changes(2);
  EXPECT_EQ(store().read(TestRecord(0, 1), {0, 1}).error().code, Errc::corrupt);
  EXPECT_TRUE(store().read(TestRecord(1, 2), {1, 2}));
  EXPECT_TRUE(store().write(TestRecord(0, 1), {0, 1}));
}

// It ended reads although all that was there could be read.
TEST_F(HealthTest, WhereWritesFailReadsGoOnAndItComesBackByItself) {
  ASSERT_TRUE(store().write(TestRecord(0, 0), {0, 0}));
  std::uint32_t number = 0;
  for (const int error : {ENOSPC, EROFS, EFBIG, EIO}) {
    SCOPED_TRACE(error);
    changes_.clear();
    faults_.break_writes(error);
    // Of other errors several are believed.
    while (changes_.empty()) {
      ASSERT_LT(++number, 100u);
      EXPECT_FALSE(store().write(TestRecord(0, number), {0, number}));
    }
    EXPECT_EQ(changes_[0].state, DiskState::read_only);
    EXPECT_FALSE(store().write(TestRecord(0, 99), {0, 99}));  // back, perhaps, and gone again
    EXPECT_TRUE(store().read(TestRecord(0, 0), {0, 0}));
    faults_.mend();
    store().control().run_until([&] { return changes_.back().online; });
    expect_works(++number);
  }
}

TEST_F(HealthTest, WhereSyncsFailNothingIsWrittenUntilTheyWorkAgain) {
  faults_.break_syncs(EIO);
  for (std::uint32_t n = 0; changes_.empty(); ++n) {
    ASSERT_LT(n, 20u);
    (void)store().write(TestRecord(0, n), {0, n});
    EXPECT_FALSE(store().flush());
  }
  EXPECT_EQ(changes_[0].state, DiskState::read_only);
  faults_.mend();
  store().control().run_until([&] { return changes_.back().online; });
  expect_works(50);
}

TEST_F(HealthTest, StoreIsClosedWhileItIsOffline) {
  faults_.break_down(ENODEV);
  EXPECT_FALSE(store().write(TestRecord(0, 1), {0, 1}));
  store()->close();
}

// A hundred of a hundred writes failed, with a good read between each, and it was believed.
TEST(Health, WhatCanBeReadSaysNothingOfWritesAndSyncs) {
  using Transfer = Health::Transfer;
  for (const Transfer failing : {Transfer::write, Transfer::sync, Transfer::read}) {
    Health health(100ms, 5000ms);
    const Transfer works = failing == Transfer::read ? Transfer::write : Transfer::read;
    bool goes = false;
    for (std::uint32_t n = 0; n < Health::kPlacesMax; ++n) {
      EXPECT_FALSE(goes);
      const DiskLocation at{0, failing == Transfer::sync ? 0 : n};
      const auto to = health.transfer_ended(failing, EIO, at, {});
      goes = to.has_value();
      if (to) {
        EXPECT_EQ(*to, failing == Transfer::read ? DiskState::offline : DiskState::read_only);
      }
      EXPECT_FALSE(health.transfer_ended(works, 0, {0, n}, {}));
    }
    EXPECT_TRUE(goes);
  }
}

TEST(Health, ASuccessOfTheKindStartsItsCountAnew) {
  Health health(100ms, 5000ms);
  for (std::uint32_t n = 0; n < 3 * Health::kPlacesMax; ++n) {
    const int code = n % Health::kPlacesMax == 0 ? 0 : EIO;
    EXPECT_FALSE(health.transfer_ended(Health::Transfer::write, code, {0, n}, {}));
  }
}

TEST(Health, DeviceThatKeepsFailingIsProbedLessAndLessOften) {
  Health health(100ms, 5000ms);
  Health::Clock::time_point now{};
  health.fall_to(DiskState::offline, now);
  EXPECT_EQ(health.next_probe() - now, 100ms);
  for (int i = 0; i < 10; ++i) health.probe_failed(now);
  EXPECT_EQ(health.next_probe() - now, 5000ms);
  health.go_online(now);
  health.fall_to(DiskState::offline, now + 1s);
  EXPECT_EQ(health.next_probe() - (now + 1s), 5000ms);
  health.go_online(now);
  health.fall_to(DiskState::offline, now + 60s);
  EXPECT_EQ(health.next_probe() - (now + 60s), 100ms);
}

}  // namespace
}  // namespace kvtier::storage
