// The store over a device that fails, waits or lies.
#include "tests/storage/faults/faulty_device.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;

class StoreFaultsTest : public ::testing::Test {
 protected:
  std::unique_ptr<BlockDevice> device() {
    return make_faulty_device(make_block_device({.depth = 64, .files = 64, .buffers = 4}), faults_);
  }

  Faults faults_;
  TestDirectory directory_;
  RecordStoreOptions options_ = small_options(directory_.path());
};

TEST_F(StoreFaultsTest, FailedReadIsAnErrorAndTheNextOneSucceeds) {
  TestStore store(options_, device());
  const TestRecord record(0, 1);
  ASSERT_TRUE(store.write(record, {0, 0}));
  faults_.fail_read(1, EIO);
  EXPECT_EQ(store.read(record, {0, 0}).error().code, Errc::io);
  EXPECT_TRUE(store.read(record, {0, 0}));
  EXPECT_EQ(store->stats().read_failures, 1u);
}

TEST_F(StoreFaultsTest, RecordWhoseWriteFailedIsNotIndexed) {
  const TestRecord failed(0, 1), written(0, 2);
  {
    TestStore store(options_, device());
    faults_.fail_write(1, EIO);
    EXPECT_EQ(store.write(failed, {0, 0}).error().code, Errc::io);
    EXPECT_TRUE(store.write(written, {0, 1}));
    EXPECT_EQ(store->stats().write_failures, 1u);
  }
  const auto entries = TestStore(options_).recover();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].identity.key, written.identity.key);
}

TEST_F(StoreFaultsTest, ReplacedRecordIsGoneEvenIfTheWriteOverItFails) {
  const TestRecord old(0, 1), next(0, 2);
  {
    TestStore store(options_, device());
    ASSERT_TRUE(store.write(old, {0, 0}));
    faults_.fail_write(2, EIO);
    EXPECT_FALSE(store.write(next, {0, 0}, old.identity.key));
  }
  EXPECT_TRUE(TestStore(options_).recover().empty());
}

TEST_F(StoreFaultsTest, WriteBeyondTheBoundIsRefusedAtOnceWhileTheDeviceHangs) {
  options_.writes_queued_max = 4;
  options_.writes_in_flight_max = 2;
  TestStore store(options_, device());
  faults_.hold();
  std::size_t done = 0;
  const auto write = [&](std::uint32_t n) {
    return store->write(store.write_of(TestRecord(0, n), {0, n}, n), [&](Result<void> result) {
      EXPECT_TRUE(result);
      ++done;
    });
  };
  for (std::uint32_t n = 0; n < 4; ++n) ASSERT_TRUE(write(n));
  const auto refused = write(4);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::no_space);
  EXPECT_EQ(store->stats().writes_refused, 1u);
  faults_.release();
  store.control().run_until([&] { return done == 4; });
  EXPECT_TRUE(write(4));
  store.control().run_until([&] { return done == 5; });
}

TEST_F(StoreFaultsTest, ReadBeyondTheBoundIsRefusedAtOnceWhileTheDeviceHangs) {
  options_.reads_queued_max = 3;
  TestStore store(options_, device());
  const TestRecord record(0, 1);
  ASSERT_TRUE(store.write(record, {0, 0}));
  faults_.hold();
  std::size_t done = 0;
  const auto read = [&] {
    return store->read(store.read_of(record, {0, 0}), [&](Result<void>) { ++done; });
  };
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(read());
  EXPECT_EQ(read().error().code, Errc::no_space);
  faults_.release();
  store.control().run_until([&] { return done == 3; });
}

TEST_F(StoreFaultsTest, WritesKeepToAQuarterOfTheirShareWhileReadsWait) {
  options_.reads_in_flight_max = 2;
  options_.writes_in_flight_max = 16;
  TestStore store(options_, device());
  const TestRecord record(0, 0);
  ASSERT_TRUE(store.write(record, {0, 0}));
  faults_.hold();
  std::size_t done = 0;
  const auto count = [&](Result<void> result) {
    EXPECT_TRUE(result);
    ++done;
  };
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(store->read(store.read_of(record, {0, 0}), count));
  for (std::uint32_t n = 1; n <= 20; ++n) {
    ASSERT_TRUE(store->write(store.write_of(TestRecord(0, n), {0, n}, n + 1), count));
  }
  // What was taken in a turn has been started when a later turn answers.
  store.forget(ExtentId(99));
  store.forget(ExtentId(99));
  EXPECT_EQ(faults_.started().reads, 2u);
  EXPECT_EQ(faults_.started().writes, 1u + 16 / 4 + 1);
  faults_.release();
  store.control().run_until([&] { return done == 26; });
}

TEST_F(StoreFaultsTest, EraseThatOvertakesAWriteIsDoneAfterItAndWins) {
  const TestRecord record(0, 1);
  {
    TestStore store(options_, device());
    faults_.hold();
    std::vector<std::string> order;
    ASSERT_TRUE(store->write(store.write_of(record, {0, 0}), [&](Result<void> result) {
      EXPECT_EQ(result.error().code, Errc::not_found);
      order.push_back("write");
    }));
    faults_.wait_for_started(1);
    store->erase({record.identity.key}, [&](Result<void> result) {
      EXPECT_TRUE(result);
      order.push_back("erase");
    });
    // The erase has been taken, and held back, once a command after it is answered.
    store.forget(ExtentId(99));
    faults_.release();
    store.control().run_until([&] { return order.size() == 2; });
  }
  EXPECT_TRUE(TestStore(options_).recover().empty());
}

// The caller waited, and a disk that stood still held the control thread.
TEST_F(StoreFaultsTest, ForgettingAnExtentWaitsForNothingAndIsDoneAfterItsLastTransfer) {
  TestStore store(options_, device());
  const TestRecord record(0, 1);
  ASSERT_TRUE(store.write(record, {0, 0}));
  faults_.hold();
  std::vector<std::string> order;
  ASSERT_TRUE(store->read(store.read_of(record, {0, 0}), [&](Result<void> result) {
    EXPECT_TRUE(result);
    order.push_back("read");
  }));
  faults_.wait_for_started(2);
  store->forget_extent(store.extent().id(), [&] { order.push_back("forgotten"); });
  EXPECT_FALSE(store->register_extent(store.extent())) << "it is not forgotten yet";
  faults_.release();
  store.control().run_until([&] { return order.size() == 2; });
  EXPECT_EQ(order, (std::vector<std::string>{"read", "forgotten"}));
  EXPECT_TRUE(store->register_extent(store.extent()));
}

TEST_F(StoreFaultsTest, CloseCompletesWhatIsInFlightAndFailsTheRest) {
  options_.writes_in_flight_max = 1;
  const TestRecord in_flight(0, 1), queued(0, 2);
  {
    TestStore store(options_, device());
    faults_.hold();
    std::optional<Result<void>> first, second;
    ASSERT_TRUE(store->write(store.write_of(in_flight, {0, 0}, 0),
                             [&](Result<void> result) { first = std::move(result); }));
    ASSERT_TRUE(store->write(store.write_of(queued, {0, 1}, 1),
                             [&](Result<void> result) { second = std::move(result); }));
    faults_.wait_for_started(1);
    std::thread releaser([&] { faults_.release(); });
    store->close();
    releaser.join();
    store.control().run_until([&] { return first && second; });
    EXPECT_TRUE(*first);
    // Either it was started in time or it was refused.
    EXPECT_TRUE(*second || second->error().code == Errc::unavailable);
  }
  EXPECT_GE(TestStore(options_).recover().size(), 1u);
}

TEST_F(StoreFaultsTest, WriteThatTheDeviceToreOrMisdirectedReadsAsCorrupt) {
  const Faults::Fault torn_early{.only_bytes = 0}, torn_late{.only_bytes = 4096};
  const Faults::Fault misdirected{.moved_by = 8192};
  std::uint32_t n = 0;
  TestStore store(options_, device());
  for (const auto& fault : {torn_early, torn_late, misdirected}) {
    const TestRecord record(0, ++n);
    faults_.on_write(n, fault);
    ASSERT_TRUE(store.write(record, {n, 0}));
    const auto found = store.read(record, {n, 0});
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code, Errc::corrupt);
  }
}

// Each is read twice: what did not hold in shared memory is read again into memory of the store's
// own.
TEST_F(StoreFaultsTest, ReadThatTheDeviceTruncatedFlippedOrMisdirectedIsCorrupt) {
  TestStore store(options_, device());
  const TestRecord record(0, 1), neighbour(0, 2);
  ASSERT_TRUE(store.write(record, {0, 0}));
  ASSERT_TRUE(store.write(neighbour, {0, 1}));
  std::uint64_t n = 0;
  for (const Faults::Fault& fault :
       {Faults::Fault{.only_bytes = 0}, Faults::Fault{.only_bytes = 4096},
        Faults::Fault{.moved_by = 8192}, Faults::Fault{.flipped_bit = 9 * 8},
        Faults::Fault{.flipped_bit = 5000 * 8 + 3}}) {
    faults_.on_read(++n, fault);
    faults_.on_read(++n, fault);
    const auto found = store.read(record, {0, 0});
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code, Errc::corrupt);
    EXPECT_EQ(faults_.started().reads, n);
  }
  EXPECT_EQ(store->stats().memory_faults, 0u);
  EXPECT_TRUE(store.read(record, {0, 0}));
}

}  // namespace
}  // namespace kvtier::storage
