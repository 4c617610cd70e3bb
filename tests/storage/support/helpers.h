// What the tests of the disk tier share: a directory, a control thread, records, and a store over
// them.
#pragma once

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "core/record/record.h"
#include "storage/device/block_device.h"
#include "storage/memory/extent.h"
#include "storage/store/record_store.h"

namespace kvtier::storage::testing {

// A fresh directory, removed at the end: below the build directory (on a real disk), or, for tests
// that open hundreds of stores, in memory where the host has such a file system.
class TestDirectory {
 public:
  enum class Where { disk, memory };
  explicit TestDirectory(Where where = Where::disk);
  ~TestDirectory();
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

// The control thread: tasks posted by the store run in run_until(), on the caller's thread.
class Control {
 public:
  RecordStore::Post post();
  // Runs tasks until `done` holds. Throws, which fails the test, when none comes for two minutes.
  void run_until(const std::function<bool()>& done);

 private:
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> tasks_;
};

// Small namespaces whose records differ in size: `kind` 0 has records of 8 KiB, 1 of 20 KiB.
Namespace test_namespace(unsigned kind);
inline constexpr unsigned kKinds = 2;

// The n-th record of a namespace; the same numbers give the same bytes.
struct TestRecord {
  TestRecord(unsigned kind, std::uint32_t number);
  BlockIdentity identity;
  std::vector<std::byte> bytes;  // as the client leaves it: no checksums
  // Whether `found` is this record, checksums and era aside.
  bool equals(std::span<const std::byte> found) const;
};

std::uint64_t record_bytes(unsigned kind);
RecordStoreOptions small_options(const std::filesystem::path& directory);

// A store with one registered extent of 64 KiB slots and blocking calls.
class TestStore {
 public:
  static constexpr std::uint64_t kSlotBytes = 64_KiB;
  static constexpr std::uint32_t kSlots = 64;

  // Fails the test if the store cannot be opened.
  explicit TestStore(const RecordStoreOptions& options,
                     std::unique_ptr<BlockDevice> device = nullptr);
  // As the daemon opens it (late_store.h).
  enum class Late { may_be };
  TestStore(const RecordStoreOptions& options, Late);

  RecordStore& operator*() noexcept { return *store_; }
  RecordStore* operator->() noexcept { return store_.get(); }
  Control& control() noexcept { return control_; }
  Extent& extent() noexcept { return *extent_; }
  std::vector<DiskEntry> recover();

  RecordStore::Write write_of(const TestRecord& record, DiskLocation to, std::uint32_t slot = 0);
  RecordStore::Read read_of(const TestRecord& record, DiskLocation from, std::uint32_t slot = 0);
  Result<void> write(const TestRecord& record, DiskLocation to,
                     std::optional<Key> replaces = std::nullopt, std::uint64_t stamp = 0);
  // As write() to `to` of this record, then what is read there: whether all of it works.
  bool works(const TestRecord& record, DiskLocation to);
  // From watch_health() on, what the store said of itself; wait_until() for the last word.
  struct HealthChange {
    bool online;
    std::string why;
  };
  void watch_health();
  const std::vector<HealthChange>& health() const noexcept { return health_; }
  void wait_until(bool online);
  // The record as read. The slot of the extent is scribbled over first.
  Result<std::vector<std::byte>> read(const TestRecord& record, DiskLocation from);
  Result<void> erase(std::vector<Key> keys);
  // Returns once the store has let go of the extent.
  void forget(ExtentId extent);
  Result<void> flush();
  // What `start` gets as its `done`, once it has been called.
  Result<void> wait_for(const std::function<Result<void>(RecordStore::Done<void>)>& start);

 private:
  void take(Result<std::unique_ptr<RecordStore>> store);

  Control control_;
  std::unique_ptr<Extent> extent_;
  std::vector<HealthChange> health_;
  std::unique_ptr<RecordStore> store_;
};

}  // namespace kvtier::storage::testing
