// How RocksDB is set up, and how its files are kept within their share of the capacity.
#pragma once

#include <rocksdb/cache.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_manager.h>

#include <cstdint>
#include <memory>

#include "core/base/units.h"

namespace kvtier::storage {

// How `bytes_max` is divided, and what the database holds in memory by it. Tables have a bound that
// RocksDB keeps by itself (a compaction that would pass it is not begun); the rest is for what that
// bound does not see.
struct IndexBudget {
  std::uint64_t tables_bytes = 0;  // sorted tables, the output of running compactions included
  std::uint64_t work_bytes = 0;    // of these, kept free for flushes and compactions
  std::uint64_t file_bytes = 0;    // target size of one table
  std::uint64_t buffer_bytes = 0;  // one write buffer of records, or of stamps
  std::uint64_t fresh_bytes = 0;   // tables that were not merged yet, before they are
  std::uint64_t log_bytes = 0;     // the write-ahead log
  std::uint64_t memory_bytes = 0;  // write buffers and cache together

  static IndexBudget of(std::uint64_t bytes_max) noexcept;
};

// The families of the index, in the order in which it opens them: the first two are written to all
// the time, the others seldom.
inline constexpr std::uint64_t kBusyFamilies = 2, kQuietFamilies = 2;
inline constexpr std::uint64_t kIndexCacheBytes = 8_MiB;

rocksdb::DBOptions index_database_options(rocksdb::Env* env, const IndexBudget& budget,
                                          std::shared_ptr<rocksdb::SstFileManager> tables,
                                          bool may_make);
rocksdb::ColumnFamilyOptions index_family_options(const IndexBudget& budget, bool busy,
                                                  std::shared_ptr<rocksdb::Cache> cache);

}  // namespace kvtier::storage
