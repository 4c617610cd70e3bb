#include "storage/store/record_store.h"

#include <gtest/gtest.h>

#include <map>

#include "storage/device/block_device.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;

class RecordStoreTest : public ::testing::Test {
 protected:
  TestDirectory directory_;
  RecordStoreOptions options_ = small_options(directory_.path() / "store");
};

TEST_F(RecordStoreTest, WrittenRecordIsReadBack) {
  TestStore store(options_);
  const TestRecord record(0, 1);
  ASSERT_TRUE(store.write(record, {0, 5}));
  const auto found = store.read(record, {0, 5});
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_TRUE(record.equals(*found));
  const auto stats = store->stats();
  EXPECT_EQ(stats.records_written, 1u);
  EXPECT_EQ(stats.bytes_read, record.bytes.size());
  EXPECT_GE(stats.file_bytes, options_.segment_bytes);
}

TEST_F(RecordStoreTest, RecordsOfEachSizeSurviveReopening) {
  const TestRecord small(0, 1), large(1, 2);
  {
    TestStore store(options_);
    ASSERT_TRUE(store.write(small, {0, 0}, {}, 11));
    ASSERT_TRUE(store.write(large, {1, 3}, {}, 12));
  }
  TestStore store(options_);
  std::map<Key, DiskEntry> entries;
  for (const DiskEntry& entry : store.recover()) entries[entry.identity.key] = entry;
  ASSERT_EQ(entries.size(), 2u);
  const DiskEntry& found = entries[large.identity.key];
  EXPECT_EQ(found.identity.ns, large.identity.ns);
  EXPECT_EQ(found.identity.parent, large.identity.parent);
  EXPECT_EQ(found.identity.block_index, large.identity.block_index);
  EXPECT_EQ(found.at, (DiskLocation{1, 3}));
  EXPECT_EQ(found.record_bytes, large.bytes.size());
  EXPECT_EQ(found.last_access, 12u);
  EXPECT_TRUE(small.equals(*store.read(small, {0, 0})));
  EXPECT_TRUE(large.equals(*store.read(large, {1, 3})));
}

TEST_F(RecordStoreTest, ANamespaceThatIsForgottenDoesNotSurviveReopening) {
  const TestRecord record(0, 1);
  {
    TestStore store(options_);
    store->remember_namespace(record.identity.ns, encode(test_namespace(0)));
    ASSERT_TRUE(store.flush());
    ASSERT_EQ(store->namespaces()->size(), 1u);
    store->forget_namespace(record.identity.ns);
    ASSERT_TRUE(store.flush());
  }
  TestStore store(options_);
  EXPECT_EQ(store->namespaces()->size(), 0u);
}

TEST_F(RecordStoreTest, StampsAndNamespacesSurviveReopening) {
  const TestRecord record(0, 1);
  const auto encoded = encode(test_namespace(0));
  {
    TestStore store(options_);
    ASSERT_TRUE(store.write(record, {0, 0}, {}, 5));
    store->touch({{record.identity.key, 500}});
    store->remember_namespace(record.identity.ns, encoded);
    ASSERT_TRUE(store.flush());
  }
  TestStore store(options_);
  const auto entries = store.recover();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].last_access, 500u);
  const auto namespaces = store->namespaces();
  ASSERT_TRUE(namespaces);
  ASSERT_EQ(namespaces->size(), 1u);
  EXPECT_EQ((*namespaces)[0].first, record.identity.ns);
  EXPECT_EQ((*namespaces)[0].second, encoded);
}

TEST_F(RecordStoreTest, ErasedRecordIsNotRecovered) {
  const TestRecord kept(0, 1), erased(0, 2);
  {
    TestStore store(options_);
    ASSERT_TRUE(store.write(kept, {0, 0}));
    ASSERT_TRUE(store.write(erased, {0, 1}));
    ASSERT_TRUE(store.erase({erased.identity.key}));
  }
  TestStore store(options_);
  const auto entries = store.recover();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].identity.key, kept.identity.key);
}

TEST_F(RecordStoreTest, ReplacedRecordIsGoneAndItsReaderGetsCorruptNeverTheOtherBytes) {
  const TestRecord old(0, 1), next(0, 2);
  {
    TestStore store(options_);
    ASSERT_TRUE(store.write(old, {0, 4}));
    ASSERT_TRUE(store.write(next, {0, 4}, old.identity.key));
    const auto stale = store.read(old, {0, 4});
    ASSERT_FALSE(stale);
    EXPECT_EQ(stale.error().code, Errc::corrupt);
    EXPECT_EQ(store->stats().checksum_failures, 1u);
  }
  TestStore store(options_);
  const auto entries = store.recover();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].identity.key, next.identity.key);
}

TEST_F(RecordStoreTest, RecordThatMovedMeanwhileIsNotErasedByItsOldSlotsReuse) {
  const TestRecord moved(0, 1), next(0, 2);
  {
    TestStore store(options_);
    ASSERT_TRUE(store.write(moved, {0, 4}));
    // Both are on their way at a time.
    std::size_t done = 0;
    auto over = store.write_of(next, {0, 4}, 2);
    over.replaces = moved.identity.key;
    for (const auto& write : {over, store.write_of(moved, {0, 9}, 3)}) {
      ASSERT_TRUE(store->write(write, [&](Result<void> result) { done += result ? 1 : 0; }));
    }
    store.control().run_until([&] { return done == 2; });
  }
  EXPECT_EQ(TestStore(options_).recover().size(), 2u);
}

TEST_F(RecordStoreTest, SegmentIsConvertedToAnotherSlotSize) {
  const TestRecord small(0, 1), large(1, 2);
  {
    TestStore store(options_);
    ASSERT_TRUE(store.write(small, {0, 2}));
    ASSERT_TRUE(store.erase({small.identity.key}));
    ASSERT_TRUE(store.write(large, {0, 1}));
    EXPECT_EQ(store.read(small, {0, 2}).error().code, Errc::corrupt);
  }
  TestStore store(options_);
  ASSERT_EQ(store.recover().size(), 1u);
  EXPECT_TRUE(large.equals(*store.read(large, {0, 1})));
}

TEST_F(RecordStoreTest, RecordThatIsNotTheBlockItIsNamedAsIsNotWritten) {
  TestStore store(options_);
  const TestRecord record(0, 1);
  auto write = store.write_of(record, {0, 0});
  write.identity.key = TestRecord(0, 2).identity.key;
  const auto written =
      store.wait_for([&](auto done) { return store->write(write, std::move(done)); });
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Errc::corrupt);
}

TEST_F(RecordStoreTest, WritePastTheCapacityIsRefused) {
  TestStore store(options_);
  const auto written = store.write(TestRecord(0, 1), {1000, 0});
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Errc::invalid);
}

TEST_F(RecordStoreTest, ForgottenExtentTakesNoMoreIoAndCanBeRegisteredAgain) {
  TestStore store(options_);
  const TestRecord record(0, 1);
  ASSERT_TRUE(store.write(record, {0, 0}));
  EXPECT_FALSE(store->register_extent(store.extent()));
  store.forget(store.extent().id());
  EXPECT_EQ(store.read(record, {0, 0}).error().code, Errc::invalid);
  ASSERT_TRUE(store->register_extent(store.extent()));
  EXPECT_TRUE(store.read(record, {0, 0}));
}

TEST_F(RecordStoreTest, ClosedStoreRefusesAndPostsNothingMore) {
  TestStore store(options_);
  store->close();
  EXPECT_EQ(store.write(TestRecord(0, 1), {0, 0}).error().code, Errc::unavailable);
  store->close();
}

TEST_F(RecordStoreTest, WorksWithoutIoUringAndWithItsPollingThread) {
  for (const bool threads : {true, false}) {
    auto options = options_;
    options.directory = directory_.path() / (threads ? "threads" : "sqpoll");
    options.force_threads = threads;
    options.sqpoll = !threads;
    TestStore store(options);
    const TestRecord record(1, 1);
    ASSERT_TRUE(store.write(record, {0, 0}));
    EXPECT_TRUE(record.equals(*store.read(record, {0, 0})));
    EXPECT_TRUE(store.flush());
  }
}

TEST_F(RecordStoreTest, ManyRecordsInFlightAtOnceAllCompleteRight) {
  for (const bool threads : {false, true}) {
    auto options = options_;
    options.directory = directory_.path() / (threads ? "threads" : "default");
    TestStore store(
        options, threads ? make_thread_device({.depth = 64, .files = 64, .buffers = 4}) : nullptr);
    std::vector<TestRecord> records;
    for (std::uint32_t n = 0; n < TestStore::kSlots; ++n) records.emplace_back(n % 2, n);
    std::size_t done = 0;
    for (std::uint32_t n = 0; n < records.size(); ++n) {
      ASSERT_TRUE(
          store->write(store.write_of(records[n], {n % 2, n / 2}, n), [&](Result<void> result) {
            EXPECT_TRUE(result) << result.error().message;
            ++done;
          }));
    }
    store.control().run_until([&] { return done == records.size(); });
    for (auto& b : store.extent().bytes()) b = std::byte{0};
    for (std::uint32_t n = 0; n < records.size(); ++n) {
      ASSERT_TRUE(
          store->read(store.read_of(records[n], {n % 2, n / 2}, n), [&, n](Result<void> result) {
            EXPECT_TRUE(result) << result.error().message;
            EXPECT_TRUE(records[n].equals(store.extent().slot(n)));
            ++done;
          }));
    }
    store.control().run_until([&] { return done == 2 * records.size(); });
  }
}

}  // namespace
}  // namespace kvtier::storage
