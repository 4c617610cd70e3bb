// Power cuts at any moment: what flush() acknowledged is there, and nothing wrong is served.
// Records and index each lose some of what they did not sync, whatever the other lost: an index
// entry that was not synced is a lost block, and one that came back to life finds another record,
// or none.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <map>
#include <random>

#include "tests/storage/faults/faulty_device.h"
#include "tests/storage/faults/index_files.h"
#include "tests/storage/faults/power_cut_device.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;

constexpr unsigned kSeeds = 500;
constexpr std::uint32_t kSlots = 12;

class CutStore {
 public:
  explicit CutStore(unsigned seed) : random_(seed) {
    options_.index_env = index_files_.env();
    auto device =
        make_faulty_device(make_thread_device({.depth = 80, .files = 64, .buffers = 4}), faults_);
    store_.emplace(options_, make_power_cut_device(std::move(device), power_));
    (*store_)->on_lost([this](const std::vector<LostRecord>& records) { given_up(records); });
  }

  void live() {
    for (auto steps = 4 + random_() % 12; steps > 0; --steps) {
      switch (random_() % 9) {
        case 0:
          flush();
          break;
        case 8:
          fail_a_flush();
          break;
        case 1:
          erase();
          break;
        default:
          write();
      }
    }
    // The process ends later than the cut, which none of its writes and syncs survives.
    power_.freeze();
    index_files_.break_down(EIO);
    store_.reset();
    power_.cut(random_);
    index_files_.cut(random_);
    index_files_.mend();
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
  }

  // What it leaves in doubt is never acknowledged by the next one.
  void fail_a_flush() {
    faults_.break_syncs(EIO);
    (void)store_->flush();
    faults_.mend();
    flush();
  }

  void given_up(const std::vector<LostRecord>& records) {
    for (const LostRecord& record : records) {
      std::erase_if(held_, [&](const auto& held) {
        return held.second == record.at &&
               TestRecord(kind_of(held.first), held.first).identity.key == record.key;
      });
    }
  }

  TestDirectory directory_{TestDirectory::Where::memory};
  RecordStoreOptions options_ = small_options(directory_.path() / "store");
  std::mt19937 random_;
  PowerCut power_;
  Faults faults_;
  IndexFiles index_files_;
  std::optional<TestStore> store_;
  std::uint32_t next_ = 0;
  std::map<std::uint32_t, DiskLocation> held_, durable_;
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
