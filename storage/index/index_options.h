// How RocksDB is set up, and how its files are kept within their share of the capacity.
#pragma once

#include <rocksdb/cache.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_manager.h>

#include <cstdint>
#include <memory>

#include "core/base/units.h"

namespace kvtier::storage {

inline constexpr std::uint64_t kIndexFamilies = 4;
inline constexpr std::uint64_t kIndexCacheBytes = 8_MiB;

// How `bytes_max` is divided. Tables have a bound that RocksDB keeps by itself (a compaction that
// would pass it is not begun); the rest is for what that bound does not see.
struct IndexBudget {
  std::uint64_t tables_bytes = 0;  // sorted tables, the output of running compactions included
  std::uint64_t work_bytes = 0;    // of these, kept free for flushes and compactions
  std::uint64_t file_bytes = 0;    // target size of one table

  static IndexBudget of(std::uint64_t bytes_max) noexcept;
};

rocksdb::DBOptions index_database_options(rocksdb::Env* env,
                                          std::shared_ptr<rocksdb::SstFileManager> tables,
                                          bool may_make);
rocksdb::ColumnFamilyOptions index_family_options(const IndexBudget& budget,
                                                  std::shared_ptr<rocksdb::Cache> cache);

}  // namespace kvtier::storage
