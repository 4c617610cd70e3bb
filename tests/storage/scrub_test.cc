// Scrubs: records read and verified into memory of the store's own.
#include <gtest/gtest.h>

#include "tests/storage/faults/faulty_device.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;

class ScrubTest : public ::testing::Test {
 protected:
  static RecordStore::Scrub scrub_of(const TestRecord& record, DiskLocation from) {
    return {record.identity.ns, record.identity.key, from, record.bytes.size(),
            record.bytes.size()};
  }
  Result<void> scrub(const TestRecord& record, DiskLocation from) {
    return store_.wait_for(
        [&](auto done) { return store_->scrub(scrub_of(record, from), std::move(done)); });
  }

  Faults faults_;
  TestDirectory directory_;
  TestStore store_{
      small_options(directory_.path()),
      make_faulty_device(make_block_device({.depth = 64, .files = 64, .buffers = 4}), faults_)};
};

TEST_F(ScrubTest, IntactRecordsOfEverySizePass) {
  for (const unsigned kind : {0U, 1U, 0U}) {
    ASSERT_TRUE(store_.write(TestRecord(kind, 1), {kind, 3}));
    EXPECT_TRUE(scrub(TestRecord(kind, 1), {kind, 3}));
  }
}

TEST_F(ScrubTest, DamagedRecordIsCorruptAndNoExtentIsTouched) {
  const TestRecord record(0, 1);
  ASSERT_TRUE(store_.write(record, {0, 3}));
  const std::vector<std::byte> before(store_.extent().bytes().begin(),
                                      store_.extent().bytes().end());
  faults_.on_read(1, {.flipped_bit = 8 * 4096});
  EXPECT_EQ(scrub(record, {0, 3}).error().code, Errc::corrupt);
  EXPECT_EQ(scrub(TestRecord(0, 2), {0, 3}).error().code, Errc::corrupt);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), store_.extent().bytes().begin()));
  EXPECT_TRUE(scrub(record, {0, 3}));
}

TEST_F(ScrubTest, MoreThanTheBoundAtOnceAreRefused) {
  const TestRecord record(0, 1);
  ASSERT_TRUE(store_.write(record, {0, 3}));
  faults_.hold();
  std::uint32_t done = 0;
  const auto start = [&] {
    return store_->scrub(scrub_of(record, {0, 3}), [&](Result<void> result) {
      EXPECT_TRUE(result);
      ++done;
    });
  };
  for (std::uint32_t i = 0; i < kScrubsMax; ++i) ASSERT_TRUE(start());
  EXPECT_EQ(start().error().code, Errc::no_space);
  faults_.release();
  store_.control().run_until([&] { return done == kScrubsMax; });
  EXPECT_TRUE(start());
  store_.control().run_until([&] { return done == kScrubsMax + 1; });
}

TEST_F(ScrubTest, ScrubOfWhatIsNoSlotIsAnErrorNotAFailure) {
  EXPECT_EQ(scrub(TestRecord(0, 1), {0, 100000}).error().code, Errc::invalid);
  EXPECT_EQ(scrub(TestRecord(0, 1), {5, 0}).error().code, Errc::corrupt);
}

}  // namespace
}  // namespace kvtier::storage
