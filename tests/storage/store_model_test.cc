// The store against a std::map, with random operations and reopening in between.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "storage/store/disk_space.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;

struct Stored {
  unsigned kind;
  DiskLocation at;
  std::uint64_t stamp;
};

class Model {
 public:
  Model(const RecordStoreOptions& options, unsigned seed) : options_(options), random_(seed) {
    open();
  }

  void step(std::uint32_t number) {
    write(number);
    if (random_() % 4 == 0) erase_one();
    if (random_() % 3 == 0) touch_one();
    if (random_() % 5 == 0) check_one();
  }

  void reopen() {
    store_.reset();
    open();
    for (const auto& [number, stored] : records_) check(number, stored);
  }

 private:
  void open() {
    store_.emplace(options_);
    space_.emplace(segment_capacity_bytes(options_), options_.segment_bytes);
    std::map<Key, DiskEntry> entries;
    for (const DiskEntry& entry : store_->recover()) entries[entry.identity.key] = entry;
    ASSERT_EQ(entries.size(), records_.size());
    for (const auto& [number, stored] : records_) {
      const DiskEntry& entry = entries[TestRecord(stored.kind, number).identity.key];
      ASSERT_EQ(entry.at, stored.at);
      ASSERT_EQ(entry.last_access, stored.stamp);
      ASSERT_TRUE(space_->claim(entry.at, entry.record_bytes));
    }
  }

  void write(std::uint32_t number) {
    const unsigned kind = random_() % kKinds;
    auto at = space_->allocate(record_bytes(kind));
    while (!at) {
      ASSERT_FALSE(records_.empty());
      erase_one();
      at = space_->allocate(record_bytes(kind));
    }
    ASSERT_TRUE(store_->write(TestRecord(kind, number), *at, {}, number));
    records_[number] = {kind, *at, number};
  }

  void erase_one() {
    if (records_.empty()) return;
    const auto victim = any();
    ASSERT_TRUE(store_->erase({TestRecord(victim->second.kind, victim->first).identity.key}));
    space_->free(victim->second.at);
    records_.erase(victim);
  }

  void touch_one() {
    if (records_.empty()) return;
    const auto one = any();
    one->second.stamp = 1'000'000 + random_() % 1000;
    (*store_)->touch({{TestRecord(one->second.kind, one->first).identity.key, one->second.stamp}});
  }

  void check_one() {
    if (records_.empty()) return;
    const auto one = any();
    check(one->first, one->second);
  }

  void check(std::uint32_t number, const Stored& stored) {
    const TestRecord record(stored.kind, number);
    const auto found = store_->read(record, stored.at);
    ASSERT_TRUE(found) << found.error().message;
    ASSERT_TRUE(record.equals(*found));
  }

  std::map<std::uint32_t, Stored>::iterator any() {
    return std::next(records_.begin(), static_cast<long>(random_() % records_.size()));
  }

  RecordStoreOptions options_;
  std::mt19937 random_;
  std::optional<TestStore> store_;
  std::optional<DiskSpace> space_;
  std::map<std::uint32_t, Stored> records_;
};

TEST(RecordStoreModel, ThousandRecordsAgreeWithAMapAcrossReopening) {
  const TestDirectory directory;
  auto options = small_options(directory.path());
  options.capacity_bytes = 37_MiB;  // four segments: slots are reused and segments converted
  Model model(options, 1);
  for (std::uint32_t number = 0; number < 1000 && !::testing::Test::HasFatalFailure(); ++number) {
    model.step(number);
    if (number % 250 == 249) model.reopen();
  }
}

}  // namespace
}  // namespace kvtier::storage
