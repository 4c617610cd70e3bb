// How RocksDB is set up, and how its files are kept within their share of the capacity.
#pragma once

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/listener.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_manager.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/base/units.h"

namespace kvtier::storage {

// How `bytes_max` is divided, and what the database holds in memory by it. Tables have a bound that
// RocksDB keeps by itself (a compaction that would pass it is not begun, see TableRoom); the rest
// is for what that bound does not see.
struct IndexBudget {
  std::uint64_t tables_bytes = 0;  // sorted tables, the output of running compactions included
  std::uint64_t work_bytes = 0;    // of these, kept free for flushes and compactions
  std::uint64_t file_bytes = 0;    // target size of one table
  std::uint64_t buffer_bytes = 0;  // one write buffer of records, or of stamps
  std::uint64_t fresh_bytes = 0;   // tables that were not merged yet, before they are
  std::uint64_t level_bytes = 0;   // what they are merged into, before that is merged further
  std::uint64_t log_bytes = 0;     // the write-ahead log
  std::uint64_t memory_bytes = 0;  // write buffers and cache together

  // Fresh tables before they are merged, before writes are slowed down and before they wait.
  int fresh_tables() const noexcept { return static_cast<int>(fresh_bytes / buffer_bytes); }
  int fresh_tables_slow() const noexcept { return 2 * fresh_tables(); }
  int fresh_tables_stop() const noexcept { return 5 * fresh_tables() / 2; }

  static IndexBudget of(std::uint64_t bytes_max) noexcept;
};

// The families of the index, in the order in which it opens them: the first two are written to all
// the time, the others seldom.
inline constexpr std::uint64_t kBusyFamilies = 2, kQuietFamilies = 2;
inline constexpr std::uint64_t kIndexCacheBytes = 8_MiB;

// The bound on what tables take together. RocksDB refuses the same merge again and again where it
// would pass the bound, however little another one needs; were writes to wait for it, they would
// wait for ever. So the bound gives way where as many tables lie fresh as slow writes down, until
// they are merged. Any thread.
class TableRoom final : public rocksdb::EventListener {
 public:
  TableRoom(rocksdb::Env* env, const IndexBudget& budget);

  // The families to look at, the busy ones first, from when they are open until just before they
  // are closed (null).
  void watch(rocksdb::DB* db, std::span<rocksdb::ColumnFamilyHandle* const> families);
  // No bound from lift() to hold().
  void lift();
  void hold();
  // What the tables take, and whether that leaves the room that merges may need.
  std::uint64_t bytes() const { return tables_->GetTotalSize(); }
  bool is_left() const { return bytes() < bytes_max_ - work_bytes_; }

  void OnFlushCompleted(rocksdb::DB* db, const rocksdb::FlushJobInfo& info) override;
  void OnCompactionCompleted(rocksdb::DB* db, const rocksdb::CompactionJobInfo& info) override;
  const std::shared_ptr<rocksdb::SstFileManager>& tables() const noexcept { return tables_; }

 private:
  void look();  // while `mutex_` is held

  const std::shared_ptr<rocksdb::SstFileManager> tables_;
  const std::uint64_t bytes_max_, work_bytes_, fresh_tables_slow_;
  std::mutex mutex_;  // of all below
  rocksdb::DB* db_ = nullptr;
  std::vector<rocksdb::ColumnFamilyHandle*> busy_;
  bool lifted_ = false;
};

rocksdb::DBOptions index_database_options(rocksdb::Env* env, const IndexBudget& budget,
                                          std::shared_ptr<TableRoom> room, bool may_make);
// By default a flush waits for merges that may be refused; it goes first.
rocksdb::FlushOptions index_flush_options();
rocksdb::ColumnFamilyOptions index_family_options(const IndexBudget& budget, bool busy,
                                                  std::shared_ptr<rocksdb::Cache> cache);

}  // namespace kvtier::storage
