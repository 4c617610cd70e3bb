// A store whose directory cannot be used when the daemon starts, and can later.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <thread>

#include "storage/store/late_store.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

class LateStoreTest : public ::testing::Test {
 protected:
  LateStoreTest() {
    options_.probe_first = 2ms;
    options_.probe_max = 20ms;
  }

  // Records whose stamps are their numbers, a namespace, and then nobody.
  void fill(std::uint32_t records) {
    TestStore store(options_);
    for (std::uint32_t n = 0; n < records; ++n)
      ASSERT_TRUE(store.write(TestRecord(0, n), {0, n}, {}, n + 1));
    store->remember_namespace(TestRecord(0, 0).identity.ns, encode(test_namespace(0)));
    ASSERT_TRUE(store.flush());
  }
  // A file where the index's directory was.
  void spoil_index() {
    fs::rename(index(), away_);
    std::ofstream(index()) << "not a directory";
  }
  void mend_index() {
    // At once: a store that found no index would rebuild it.
    ASSERT_EQ(::renameat2(AT_FDCWD, away_.c_str(), AT_FDCWD, index().c_str(), RENAME_EXCHANGE), 0);
  }
  fs::path index() const { return options_.directory / "index"; }

  TestDirectory directory_;
  const fs::path away_ = directory_.path() / "away";
  RecordStoreOptions options_ = small_options(directory_.path() / "store");
};

TEST_F(LateStoreTest, OneThatCanBeOpenedIsThereAtOnce) {
  fill(3);
  TestStore store(options_, TestStore::Late::may_be);
  EXPECT_FALSE(store->unknown());
  EXPECT_FALSE(store->to_recover());
  EXPECT_EQ(store.recover().size(), 3u);
}

TEST_F(LateStoreTest, IsOfflineSaysWhyAndComesWithAllItsRecordsNewestFirst) {
  fill(30);
  spoil_index();
  TestStore store(options_, TestStore::Late::may_be);
  store.watch_health();
  ASSERT_EQ(store.health().size(), 1u);
  EXPECT_FALSE(store.health()[0].online);
  EXPECT_NE(store.health()[0].why.find(index().string()), std::string::npos)
      << store.health()[0].why;
  EXPECT_TRUE(store->unknown());
  EXPECT_TRUE(store.recover().empty());
  EXPECT_EQ(store.write(TestRecord(0, 99), {1, 0}).error().code, Errc::unavailable);
  EXPECT_EQ(store.read(TestRecord(0, 1), {0, 1}).error().code, Errc::unavailable);
  EXPECT_EQ(store.flush().error().code, Errc::unavailable);
  EXPECT_EQ(store.erase({TestRecord(0, 1).identity.key}).error().code, Errc::unavailable);
  EXPECT_EQ(store->stats().file_bytes, 0u);

  mend_index();
  store.wait_until(true);
  EXPECT_FALSE(store->unknown());
  std::vector<DiskEntry> entries;
  while (store->to_recover()) {
    for (const DiskEntry& entry : store.recover()) entries.push_back(entry);
  }
  ASSERT_EQ(entries.size(), 30u);
  for (std::uint32_t n = 0; n < 30; ++n) {
    EXPECT_EQ(entries[n].last_access, 30 - n);
    EXPECT_EQ(entries[n].identity.key, TestRecord(0, 29 - n).identity.key);
  }
  ASSERT_EQ(store->namespaces()->size(), 1u);
  // Into the extent that was registered before.
  const TestRecord record(0, 7);
  EXPECT_TRUE(record.equals(*store.read(record, {0, 7})));
  EXPECT_TRUE(store.works(TestRecord(0, 99), {1, 0}));
}

TEST_F(LateStoreTest, RemembersTheNamespacesThatItWasTold) {
  fill(1);
  spoil_index();
  {
    TestStore store(options_, TestStore::Late::may_be);
    store.watch_health();
    store->remember_namespace(TestRecord(1, 0).identity.ns, encode(test_namespace(1)));
    mend_index();
    store.wait_until(true);
    ASSERT_TRUE(store.flush());
  }
  EXPECT_EQ(TestStore(options_)->namespaces()->size(), 2u);
}

TEST_F(LateStoreTest, MakesNoNewStoreWhereItsDirectoryHasGone) {
  fill(2);
  spoil_index();
  TestStore store(options_, TestStore::Late::may_be);
  store.watch_health();
  fs::rename(options_.directory, directory_.path() / "unmounted");
  store.control().run_until(
      [&] { return store.health().back().why.find("FORMAT") != std::string::npos; });
  EXPECT_FALSE(fs::exists(options_.directory));
  fs::rename(directory_.path() / "unmounted", options_.directory);
  mend_index();
  store.wait_until(true);
}

TEST_F(LateStoreTest, AStoreThatNeverWasAndOneOfAnotherVersionEndTheStart) {
  const auto post = [](std::function<void()>) {};
  options_.directory = "/proc/kvtier-store";
  EXPECT_EQ(open_record_store_now_or_late(options_, post).error().code, Errc::io);
  options_.directory = directory_.path() / "store";
  fill(1);
  std::ofstream(options_.directory / "FORMAT") << "kvtier-store 3\nsomething new\n";
  EXPECT_EQ(open_record_store_now_or_late(options_, post).error().code, Errc::version);
}

// Devices that nothing comes of until they are let go.
class HangingDevices {
 public:
  WrapDevice wrap() {
    return [this](std::unique_ptr<BlockDevice> device) {
      std::unique_lock lock(mutex_);
      ++hanging_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return free_; });
      return device;
    };
  }
  void wait_for(int hanging) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return hanging_ >= hanging; });
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    free_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int hanging_ = 0;
  bool free_ = false;
};

// The start hung with it.
TEST_F(LateStoreTest, OneThatHangsComesLateWhenItHangsNoMore) {
  fill(3);
  HangingDevices devices;
  Control control;
  auto store = open_record_store_now_or_late(options_, control.post(), devices.wrap(), 20ms);
  ASSERT_TRUE(store);
  EXPECT_TRUE((*store)->unknown());
  std::vector<std::string> why;
  bool online = false;
  (*store)->on_health([&](DiskState state, const std::string& text) {
    online = state == DiskState::online;
    why.push_back(text);
  });
  ASSERT_EQ(why.size(), 1u);
  EXPECT_NE(why[0].find(options_.directory.string()), std::string::npos) << why[0];
  devices.let_go();
  control.run_until([&] { return online; });
  std::size_t found = 0;
  while ((*store)->to_recover()) ASSERT_TRUE((*store)->recover([&](const DiskEntry&) { ++found; }));
  EXPECT_EQ(found, 3u);
}

TEST_F(LateStoreTest, SeveralAreOpenedSideBySide) {
  fill(3);
  RecordStoreOptions other = options_;
  other.directory = directory_.path() / "other";
  HangingDevices devices;
  Control control;
  StoreOpening first(options_, control.post(), devices.wrap());
  StoreOpening second(other, control.post(), devices.wrap());
  devices.wait_for(2);
  devices.let_go();
  const auto stores = {first.take(1min), second.take(1min)};
  for (const auto& store : stores) {
    ASSERT_TRUE(store);
    EXPECT_FALSE((*store)->unknown());
  }
}

TEST_F(LateStoreTest, WhatIsHeardOfAnOpeningIsToldAndKeepsItFromBeingLate) {
  fill(3);
  fs::remove_all(index());
  std::vector<std::string> heard;
  const auto thread = std::this_thread::get_id();
  options_.progress = [&](const std::string& text) {
    EXPECT_EQ(std::this_thread::get_id(), thread);
    heard.push_back(text);
  };
  Control control;
  const auto store = open_record_store_now_or_late(options_, control.post());
  ASSERT_TRUE(store);
  EXPECT_FALSE((*store)->unknown());
  EXPECT_FALSE(heard.empty());
}

// A stop waited for the end of it.
TEST_F(LateStoreTest, MakingAnIndexAnewIsGivenUpWhereItIsNotWantedAnyMore) {
  fill(3);
  fs::remove_all(index());
  options_.cancelled = [] { return true; };
  const auto store = open_record_store(options_, [](auto) {});
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, Errc::unavailable);
  options_.cancelled = nullptr;
  EXPECT_EQ(TestStore(options_).recover().size(), 3u) << "it is made anew the next time";
}

TEST_F(LateStoreTest, EndsWhileItWaitsAndWhenNobodyTookWhatItOpened) {
  fill(2);
  spoil_index();
  { const TestStore store(options_, TestStore::Late::may_be); }
  std::vector<std::function<void()>> never_run;
  {
    std::mutex mutex;
    std::condition_variable posted;
    const auto store = open_record_store_now_or_late(options_, [&](std::function<void()> task) {
      const std::lock_guard lock(mutex);
      never_run.push_back(std::move(task));
      posted.notify_one();
    });
    ASSERT_TRUE(store);
    mend_index();
    std::unique_lock lock(mutex);
    posted.wait(lock, [&] { return !never_run.empty(); });
  }
  for (const auto& task : never_run) task();
  EXPECT_EQ(TestStore(options_).recover().size(), 2u);
}

}  // namespace
}  // namespace kvtier::storage
