// The capacity, measured in allocated blocks of everything below the directory, while records come
// and go as fast as they can.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <random>
#include <thread>

#include "storage/index/allocated_bytes.h"
#include "storage/index/index.h"
#include "storage/store/disk_space.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;

constexpr std::uint32_t kWrites = 20'000;
constexpr std::uint32_t kInFlight = 32;

// Measures again and again on a thread of its own.
class Gauge {
 public:
  explicit Gauge(std::filesystem::path directory)
      : thread_([this, directory = std::move(directory)] {
          while (!stopping_) {
            most_ = std::max(most_.load(), allocated_bytes(directory));
            ++readings_;
          }
        }) {}
  ~Gauge() { stop(); }
  std::uint64_t most() {
    stop();
    return most_;
  }
  std::uint64_t readings() const { return readings_; }

 private:
  void stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }
  std::atomic<std::uint64_t> most_ = 0, readings_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

// Writes new records for ever, each over the oldest once the capacity is full.
class Churn {
 public:
  Churn(TestStore& store, const RecordStoreOptions& options)
      : store_(store), space_(segment_capacity_bytes(options), options.segment_bytes) {
    for (std::uint32_t slot = 0; slot < kInFlight; ++slot) free_slots_.push_back(slot);
  }

  void run(std::uint32_t writes) {
    for (std::uint32_t number = 0; number < writes; ++number) {
      store_.control().run_until([&] { return !free_slots_.empty(); });
      write(number);
    }
    store_.control().run_until([&] { return free_slots_.size() == kInFlight; });
  }
  std::uint32_t evicted() const { return evicted_; }

 private:
  struct Held {
    Key key;
    DiskLocation at;
  };

  void write(std::uint32_t number) {
    const TestRecord record(0, number);
    const std::uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    RecordStore::Write write;
    if (const auto at = space_.allocate(record.bytes.size())) {
      write = store_.write_of(record, *at, slot);
    } else {
      write = store_.write_of(record, held_.front().at, slot);
      write.replaces = held_.front().key;
      held_.pop_front();
      ++evicted_;
    }
    write.last_access = number;
    const Held held{record.identity.key, write.to};
    ASSERT_TRUE(store_->write(write, [this, slot, held](Result<void> result) {
      ASSERT_TRUE(result) << result.error().message;
      held_.push_back(held);
      free_slots_.push_back(slot);
    }));
    store_->touch({{held_.empty() ? held.key : held_.front().key, number}});
  }

  TestStore& store_;
  DiskSpace space_;
  std::deque<Held> held_;
  std::vector<std::uint32_t> free_slots_;
  std::uint32_t evicted_ = 0;
};

TEST(Space, CapacityIsNeverPassedWhileRecordsComeAndGo) {
  const TestDirectory directory;
  auto options = small_options(directory.path() / "store");
  options.capacity_bytes = 48_MiB;
  Gauge gauge(options.directory);
  {
    TestStore store(options);
    Churn churn(store, options);
    churn.run(kWrites);
    EXPECT_GT(churn.evicted(), kWrites / 2);
    EXPECT_LE(allocated_bytes(options.directory), options.capacity_bytes);
  }
  EXPECT_LE(gauge.most(), options.capacity_bytes);
  EXPECT_GT(gauge.readings(), 100u);
  EXPECT_LE(allocated_bytes(options.directory), options.capacity_bytes);
  RecordProperty("allocated_bytes_max", std::to_string(gauge.most()));
  EXPECT_FALSE(TestStore(options).recover().empty());
}

Key random_key(std::mt19937_64& random) {
  Key key;
  for (auto& one : key.bytes) one = static_cast<std::byte>(random());
  return key;
}

TEST(Space, IndexRefusesRecordsBeforeItsFilesPassTheirShare) {
  const TestDirectory directory;
  constexpr std::uint64_t kShare = 33_MiB;
  const auto path = directory.path() / "index";
  Gauge gauge(path);
  auto index = *Index::open({.directory = path, .bytes_max = kShare});
  std::mt19937_64 random(1);
  std::vector<Key> keys;
  std::size_t refused = 0;
  for (int turn = 0; turn < 4000; ++turn) {
    Index::Batch batch;
    const bool has_room = index->has_room();
    if (!has_room) ++refused;
    for (int i = 0; i < 64; ++i) {
      if (has_room) {
        DiskEntry entry;
        entry.identity.key = random_key(random);
        entry.last_access = random();
        batch.put(entry);
        keys.push_back(entry.identity.key);
      } else if (keys.size() > 1000) {  // compaction may be slow to give room back
        batch.erase(keys.back());
        keys.pop_back();
      }
    }
    for (int i = 0; i < 16; ++i) batch.touch(keys[random() % keys.size()], random());
    ASSERT_TRUE(index->commit(batch));
  }
  EXPECT_GT(refused, 0u);
  EXPECT_LE(gauge.most(), kShare);
  RecordProperty("allocated_bytes_max", std::to_string(gauge.most()));
}

}  // namespace
}  // namespace kvtier::storage
