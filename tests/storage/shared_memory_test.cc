// A store whose extent others write to, and take pages out of, while it reads and writes.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/storage/faults/faulty_device.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;

class SharedMemoryTest : public ::testing::Test {
 protected:
  SharedMemoryTest()
      : store_(options_, make_faulty_device(
                             make_block_device({.depth = 80, .files = 64, .buffers = 4}), faults_)),
        client_(*Mapping::map(store_.extent().memory_fd(),
                              TestStore::kSlots * TestStore::kSlotBytes,
                              Mapping::Access::read_write)) {}

  void write(std::uint32_t first, std::uint32_t end) {
    for (std::uint32_t n = first; n < end; ++n)
      ASSERT_TRUE(store_.write(TestRecord(0, n), {0, n})) << n;
  }
  void expect_right(std::uint32_t first, std::uint32_t end) {
    for (std::uint32_t n = first; n < end; ++n) {
      const auto found = store_.read(TestRecord(0, n), {0, n});
      ASSERT_TRUE(found) << n << ": " << found.error().message;
      EXPECT_TRUE(TestRecord(0, n).equals(*found)) << n;
    }
  }
  // What a client that may write can do to all who share the extent.
  void take_pages_away() {
    ASSERT_EQ(::fallocate(store_.extent().memory_fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                          0, static_cast<off_t>(client_.bytes().size())),
              0);
  }
  std::span<std::byte> theirs(std::uint32_t slot) {
    return client_.bytes().subspan(slot * TestStore::kSlotBytes, TestStore::kSlotBytes);
  }
  // Reads a record; `meddle` runs when its bytes have landed in the slot and nobody has looked.
  Result<void> read_meddled(const TestRecord& record, DiskLocation from, std::uint32_t slot,
                            const std::function<void()>& meddle) {
    std::ranges::fill(theirs(slot), std::byte{0});
    faults_.hold();
    std::optional<Result<void>> outcome;
    const auto started = store_->read(store_.read_of(record, from, slot),
                                      [&](Result<void> result) { outcome = std::move(result); });
    if (!started) return started;
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!record.equals(theirs(slot)) && std::chrono::steady_clock::now() < give_up)
      std::this_thread::yield();
    EXPECT_TRUE(record.equals(theirs(slot)));
    meddle();
    faults_.release();
    store_.control().run_until([&] { return outcome.has_value(); });
    return *outcome;
  }

  TestDirectory directory_;
  RecordStoreOptions options_ = small_options(directory_.path() / "store");
  Faults faults_;
  TestStore store_;
  Mapping client_;
};

// The kernel went on reading into pages that nobody had mapped any more: every record was corrupt,
// and what was written was what had been in the slot before.
TEST_F(SharedMemoryTest, PagesThatAClientTookAwayCostNoRecord) {
  write(0, 20);
  faults_.wait_for_pinned(1);
  take_pages_away();
  write(20, 40);
  expect_right(0, 20);
  take_pages_away();
  expect_right(0, 40);
  EXPECT_EQ(store_->stats().checksum_failures, 0u);
  EXPECT_EQ(store_->stats().records_read, 60u);
  EXPECT_LE(store_->stats().memory_faults, 1u) << "the first is the last";
}

TEST_F(SharedMemoryTest, PagesThatGoUnderAReadCostNoRecord) {
  write(0, 3);
  faults_.wait_for_pinned(1);
  const TestRecord record(0, 1);
  ASSERT_TRUE(read_meddled(record, {0, 1}, 2, [this] { take_pages_away(); }));
  EXPECT_TRUE(record.equals(theirs(2))) << "where all can see it";
  EXPECT_EQ(store_->stats().memory_faults, 1u);
  EXPECT_EQ(store_->stats().checksum_failures, 0u);
  expect_right(0, 3);
}

TEST_F(SharedMemoryTest, ARecordThatAClientScribblesOverAsItLandsIsReadAgain) {
  write(0, 3);
  for (const std::size_t at : {offsetof(RecordHeader, token_count), offsetof(RecordHeader, key),
                               sizeof(RecordHeader), std::size_t{5000}}) {
    const TestRecord record(0, 2);
    ASSERT_TRUE(read_meddled(record, {0, 2}, 2, [&] { theirs(2)[at] ^= std::byte{0x7F}; })) << at;
    EXPECT_TRUE(record.equals(theirs(2)));
  }
  EXPECT_EQ(store_->stats().memory_faults, 4u);
  EXPECT_EQ(store_->stats().records_read, 4u);
  EXPECT_EQ(store_->stats().read_failures, 0u);
}

TEST_F(SharedMemoryTest, ARecordThatDoesNotHoldOnDiskIsCorruptWhateverLiesInTheSlot) {
  write(0, 2);
  // Looked for where another one is; a client puts the right one into the slot meanwhile.
  const TestRecord wanted(0, 0), there(0, 1);
  faults_.hold();
  std::optional<Result<void>> outcome;
  ASSERT_TRUE(store_->read(store_.read_of(wanted, {0, 1}, 2),
                           [&](Result<void> result) { outcome = std::move(result); }));
  faults_.release();
  store_.control().run_until([&] { return outcome.has_value(); });
  ASSERT_FALSE(*outcome);
  EXPECT_EQ(outcome->error().code, Errc::corrupt);
  EXPECT_EQ(store_->stats().checksum_failures, 1u);
  EXPECT_EQ(store_->stats().memory_faults, 0u);
}

// Changes sizes of the record in a slot as fast as it can.
class Scribbler {
 public:
  explicit Scribbler(std::span<std::byte> slot)
      : thread_([this, slot] {
          const auto field = [&](std::size_t at) {
            return reinterpret_cast<volatile std::uint32_t*>(slot.data() + at);
          };
          while (!stop_.load(std::memory_order_relaxed)) {
            for (const std::uint32_t tokens : {0x7FFFFFFFU, 16U, 2000U, 16U})
              *field(offsetof(RecordHeader, token_count)) = tokens;
            for (const std::uint32_t offset : {0xFFFFF000U, 128U})
              *field(offsetof(RecordHeader, proof_offset)) = offset;
            for (const std::uint32_t bytes : {1U << 22, 4096U})
              *field(offsetof(RecordHeader, payload_bytes)) = bytes;
            ++turns_;
          }
        }) {}
  ~Scribbler() {
    stop_ = true;
    thread_.join();
  }
  void wait_for_turn() const {
    while (turns_ == 0) std::this_thread::yield();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<std::uint64_t> turns_ = 0;
  std::thread thread_;
};

TEST_F(SharedMemoryTest, SizesThatChangeUnderTheStoreCostNoRecordAndEndNothing) {
  write(0, 40);
  {
    const Scribbler scribbler(theirs(1));  // where read() reads to
    scribbler.wait_for_turn();
    for (std::uint32_t n = 0; n < 400; ++n) {
      const TestRecord record(0, n % 40);
      const auto result = store_.wait_for([&](auto done) {
        return store_->read(store_.read_of(record, {0, n % 40}, 1), std::move(done));
      });
      ASSERT_TRUE(result) << n << ": " << result.error().message;
    }
  }
  {
    const Scribbler scribbler(theirs(0));  // where write() writes from
    scribbler.wait_for_turn();
    for (std::uint32_t n = 40; n < 100; ++n) (void)store_.write(TestRecord(0, n), {0, n});
  }
  for (std::uint32_t n = 40; n < 100; ++n) {
    const TestRecord record(0, n);
    const auto found = store_.read(record, {0, n});
    EXPECT_TRUE(!found || record.equals(*found)) << n;
  }
  expect_right(0, 40);
}

}  // namespace
}  // namespace kvtier::storage
