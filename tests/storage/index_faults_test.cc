// The index's own files fail, the records' do not: what was to be indexed fails with the store, and
// nothing that was said to be there is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "storage/index/allocated_bytes.h"
#include "storage/index/index.h"
#include "storage/index/store_directory.h"
#include "tests/storage/faults/index_files.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;
using namespace std::chrono_literals;

class IndexFaultsTest : public ::testing::Test {
 protected:
  IndexFaultsTest() {
    options_.probe_first = 2ms;
    options_.probe_max = 20ms;
    options_.check_interval = 2ms;
    options_.index_env = files_.env();
  }

  // Until the store has tried more than once in vain to come back.
  void wait_for_vain_probes() {
    const std::uint64_t before = files_.failures();
    const auto give_up = std::chrono::steady_clock::now() + 60s;
    while (files_.failures() < before + 3) {
      ASSERT_LT(std::chrono::steady_clock::now(), give_up) << "the store does not try";
      std::this_thread::yield();
    }
  }
  bool is_indexed(const TestRecord& record) {
    auto without_faults = options_;
    without_faults.index_env = nullptr;
    const auto entries = TestStore(without_faults).recover();
    return std::ranges::any_of(
        entries, [&](const DiskEntry& entry) { return entry.identity.key == record.identity.key; });
  }

  IndexFiles files_;
  TestDirectory directory_;
  RecordStoreOptions options_ = small_options(directory_.path() / "store");
};

// The next sync of that log said nothing of what the failed one may have lost.
TEST_F(IndexFaultsTest, WhatALogHeldWhoseSyncFailedIsDurableOnceAFlushSaysSo) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    options_.directory = directory_.path() / std::to_string(seed);
    const TestRecord record(0, seed);
    {
      TestStore store(options_);
      store.watch_health();
      ASSERT_TRUE(store.write(record, {0, 0}));
      files_.break_syncs(EIO);
      EXPECT_FALSE(store.flush());
      store.wait_until(false);
      files_.mend();
      store.wait_until(true);
      ASSERT_TRUE(store.flush());
      files_.break_down(EIO);  // the power is cut: nothing more is written
    }
    std::mt19937 random(seed);
    files_.cut(random);
    files_.mend();
    EXPECT_TRUE(is_indexed(record));
  }
}

TEST_F(IndexFaultsTest, WriteThatCannotBeIndexedFailsWithTheStoreWhichComesBackByItself) {
  std::uint32_t number = 0;
  for (const int error : {EIO, ENOSPC, EROFS}) {
    SCOPED_TRACE(error);
    const TestRecord before(0, ++number), failed(0, ++number), after(0, ++number);
    {
      TestStore store(options_);
      store.watch_health();
      ASSERT_TRUE(store.write(before, {0, number}));
      files_.break_down(error);
      EXPECT_EQ(store.write(failed, {1, number}).error().code, Errc::unavailable);
      store.wait_until(false);
      EXPECT_EQ(store.write(after, {2, number}).error().code, Errc::unavailable);
      wait_for_vain_probes();
      EXPECT_FALSE(store.health().back().online);
      files_.mend();
      store.wait_until(true);
      const auto found = store.read(before, {0, number});
      ASSERT_TRUE(found) << found.error().message;
      EXPECT_TRUE(before.equals(*found));
      EXPECT_TRUE(store.works(after, {2, number}));
    }
    EXPECT_TRUE(is_indexed(before));
    EXPECT_FALSE(is_indexed(failed));
    EXPECT_TRUE(is_indexed(after));
  }
}

TEST_F(IndexFaultsTest, FullIndexNamesTheMend) {
  TestStore store(options_);
  store.watch_health();
  files_.break_down(ENOSPC);
  EXPECT_FALSE(store.write(TestRecord(0, 1), {0, 0}));
  store.wait_until(false);
  EXPECT_NE(store.health().back().why.find("free space"), std::string::npos)
      << store.health().back().why;
  files_.mend();
  store.wait_until(true);
}

TEST_F(IndexFaultsTest, RecordWhoseReplacementCouldNotBeIndexedIsForgottenBeforeTheReturn) {
  const TestRecord old(0, 1), next(0, 2);
  {
    TestStore store(options_);
    store.watch_health();
    ASSERT_TRUE(store.write(old, {0, 0}));
    files_.break_down(EIO);
    EXPECT_EQ(store.write(next, {0, 0}, old.identity.key).error().code, Errc::unavailable);
    store.wait_until(false);
    files_.mend();
    store.wait_until(true);
  }
  EXPECT_FALSE(is_indexed(old));
  EXPECT_FALSE(is_indexed(next));
}

TEST_F(IndexFaultsTest, EraseThatTheIndexCouldNotTakeIsMadeUpForBeforeTheReturn) {
  const TestRecord record(0, 1);
  {
    TestStore store(options_);
    store.watch_health();
    ASSERT_TRUE(store.write(record, {0, 0}));
    files_.break_down(ENOSPC);
    EXPECT_EQ(store.erase({record.identity.key}).error().code, Errc::unavailable);
    store.wait_until(false);
    files_.mend();
    store.wait_until(true);
  }
  EXPECT_FALSE(is_indexed(record));
}

TEST_F(IndexFaultsTest, FlushThatCouldNotSyncTheIndexFailsAndTheNextOneCoversItsRecords) {
  const TestRecord record(0, 1);
  std::mt19937 random(1);
  {
    TestStore store(options_);
    store.watch_health();
    ASSERT_TRUE(store.write(record, {0, 0}));
    files_.break_down(EIO);
    ASSERT_FALSE(store.flush());
    store.wait_until(false);
    files_.mend();
    store.wait_until(true);
    ASSERT_TRUE(store.flush());
    files_.break_down(EIO);
  }
  files_.cut(random);
  files_.mend();
  EXPECT_TRUE(is_indexed(record));
}

// With its log unsynced, a power cut would take the entry of a record that is there. More than one
// cut, for half of them spare what was not synced.
TEST_F(IndexFaultsTest, FlushSyncsTheLogOfTheIndex) {
  const TestRecord record(0, 1);
  std::mt19937 random(1);
  for (std::uint32_t cut = 0; cut < 8; ++cut) {
    {
      TestStore store(options_);
      ASSERT_TRUE(store.write(record, {0, cut}));
      ASSERT_TRUE(store.flush());
      files_.break_down(EIO);
    }
    files_.cut(random);
    files_.mend();
    ASSERT_TRUE(is_indexed(record)) << cut;
    ASSERT_TRUE(TestStore(options_).erase({record.identity.key}));
  }
}

TEST_F(IndexFaultsTest, IndexOfALargerCapacityIsShrunkToTheShareOfALowerOne) {
  const TestRecord kept(0, 1);
  auto larger = options_;
  larger.capacity_bytes = 8_GiB;
  larger.check_free_space = false;
  ASSERT_TRUE(TestStore(larger).write(kept, {0, 0}));
  {
    const auto directory = *StoreDirectory::open(larger);
    const auto index = *Index::open({.directory = directory.index(),
                                     .store = directory.id(),
                                     .bytes_max = index_capacity_bytes(larger)});
    // In the order of their keys, which spares RocksDB most of its sorting.
    std::uint64_t number = 0;
    for (std::uint32_t turn = 0; turn < 900; ++turn) {
      Index::Batch batch;
      for (std::uint32_t i = 0; i < 512; ++i) {
        DiskEntry past_the_lower_one;
        const std::uint64_t in_order = __builtin_bswap64(number++);
        std::memcpy(past_the_lower_one.identity.key.bytes.data(), &in_order, sizeof in_order);
        past_the_lower_one.at = {1000 + turn, i};
        past_the_lower_one.record_bytes = record_bytes(0);
        batch.put(past_the_lower_one);
      }
      ASSERT_TRUE(index->commit(batch));
    }
  }
  const auto index_bytes = [&] { return allocated_bytes(options_.directory / "index"); };
  ASSERT_GT(index_bytes(), index_capacity_bytes(options_));
  TestStore store(options_);
  EXPECT_LE(index_bytes(), index_capacity_bytes(options_));
  EXPECT_EQ(store.recover().size(), 1u);
  EXPECT_TRUE(store.read(kept, {0, 0}));
  EXPECT_TRUE(store.works(TestRecord(0, 2), {0, 1}));
}

}  // namespace
}  // namespace kvtier::storage
