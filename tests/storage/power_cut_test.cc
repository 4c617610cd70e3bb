// Power cuts at any moment: what flush() acknowledged is there, and nothing wrong is served. The
// index that survives is of any moment between its last sync and the cut, apart from what the data
// lost.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <map>
#include <random>

#include "storage/faults/power_cut_device.h"
#include "tests/storage/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;
namespace fs = std::filesystem;

constexpr unsigned kSeeds = 500;
constexpr std::uint32_t kSlots = 12;

class CutStore {
 public:
  explicit CutStore(unsigned seed)
      : random_(seed),
        store_(std::in_place, options_,
               make_power_cut_device(make_thread_device({.depth = 80, .files = 64, .buffers = 4}),
                                     power_)) {
    keep_index();
  }

  void live() {
    for (auto steps = 4 + random_() % 12; steps > 0; --steps) {
      switch (random_() % 8) {
        case 0:
          flush();
          break;
        case 1:
          erase();
          break;
        case 2:
          keep_index();
          break;
        default:
          write();
      }
    }
    keep_index();
    power_.freeze();
    store_.reset();
    power_.cut(random_);
    const auto survived = random_() % 3 == 0 ? oldest_index_
                          : random_() % 2 == 0
                              ? indexes_ - 1
                              : oldest_index_ + random_() % (indexes_ - oldest_index_);
    fs::remove_all(options_.directory / "index");
    fs::rename(kept(survived), options_.directory / "index");
  }

  void expect_flushed_there_and_nothing_wrong() {
    TestStore store(options_);
    std::map<Key, DiskEntry> entries;
    for (const DiskEntry& entry : store.recover()) entries[entry.identity.key] = entry;
    for (std::uint32_t number = 0; number < next_; ++number) {
      const TestRecord record(kind_of(number), number);
      const auto entry = entries.find(record.identity.key);
      ASSERT_TRUE(entry != entries.end() || !durable_.contains(number)) << number;
      if (entry == entries.end()) continue;
      const auto found = store.read(record, entry->second.at);
      ASSERT_TRUE(found || !durable_.contains(number)) << found.error().message;
      ASSERT_TRUE(found ? record.equals(*found) : found.error().code == Errc::corrupt) << number;
      entries.erase(entry);
    }
    ASSERT_TRUE(entries.empty());
  }

 private:
  static unsigned kind_of(std::uint32_t number) { return number % kKinds; }

  void write() {
    const std::uint32_t number = next_++;
    const DiskLocation at{kind_of(number), static_cast<std::uint32_t>(random_() % kSlots)};
    std::optional<Key> replaces;
    for (auto held = held_.begin(); held != held_.end(); ++held) {
      if (held->second != at) continue;
      replaces = TestRecord(kind_of(held->first), held->first).identity.key;
      durable_.erase(held->first);
      held_.erase(held);
      break;
    }
    ASSERT_TRUE(store_->write(TestRecord(kind_of(number), number), at, replaces));
    held_[number] = at;
  }

  void erase() {
    if (held_.empty()) return;
    const auto victim = std::next(held_.begin(), static_cast<long>(random_() % held_.size()));
    const std::uint32_t number = victim->first;
    durable_.erase(number);
    held_.erase(victim);
    ASSERT_TRUE(store_->erase({TestRecord(kind_of(number), number).identity.key}));
  }

  void flush() {
    ASSERT_TRUE(store_->flush());
    durable_ = held_;
    oldest_index_ = indexes_;
    keep_index();
  }

  // The store is idle, so its index's files do not change meanwhile.
  void keep_index() {
    fs::copy(options_.directory / "index", kept(indexes_++), fs::copy_options::recursive);
  }
  fs::path kept(std::size_t number) const {
    return directory_.path() / ("index-" + std::to_string(number));
  }

  TestDirectory directory_{TestDirectory::Where::memory};
  RecordStoreOptions options_ = small_options(directory_.path() / "store");
  std::mt19937 random_;
  PowerCut power_;
  std::optional<TestStore> store_;
  std::uint32_t next_ = 0;
  std::map<std::uint32_t, DiskLocation> held_, durable_;
  std::size_t indexes_ = 0, oldest_index_ = 0;
};

TEST(PowerCut, NothingFlushedIsLostAndNothingWrongIsServedAfterAnyCut) {
  const auto level = spdlog::get_level();
  spdlog::set_level(spdlog::level::off);
  for (unsigned seed = 0; seed < kSeeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    CutStore store(seed);
    store.live();
    store.expect_flushed_there_and_nothing_wrong();
  }
  spdlog::set_level(level);
}

}  // namespace
}  // namespace kvtier::storage
