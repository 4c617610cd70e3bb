#include "storage/disk/index_options.h"

#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>

#include <algorithm>

#include "client/base/check.h"

namespace kvtier::storage {
namespace {

constexpr std::uint64_t kWriteBufferBytes = 512_KiB;
constexpr int kWriteBuffers = 2;
constexpr std::uint64_t kFamilies = 4;
constexpr std::uint64_t kManifestBytes = 1_MiB;
constexpr std::uint64_t kTextLogBytes = 512_KiB;
constexpr std::uint64_t kTextLogs = 2;

// The write-ahead log holds no more than the buffers that were not flushed yet, and a batch.
constexpr std::uint64_t kWalBytesMax = kFamilies * kWriteBuffers * kWriteBufferBytes + 1_MiB;
// Two manifests while one follows the other; OPTIONS, LOCK and CURRENT are small. A flush is
// written before its table is counted.
constexpr std::uint64_t kUnseenBytes =
    kWalBytesMax + 2 * kManifestBytes + (kTextLogs + 1) * kTextLogBytes + kWriteBufferBytes + 2_MiB;
// Records and stamps come together; what their buffers hold becomes tables after the last record
// was let in.
constexpr std::uint64_t kBufferedBytes = 2 * kWriteBuffers * kWriteBufferBytes;
static_assert(kUnseenBytes + 2 * kBufferedBytes < 32_MiB);

}  // namespace

// A compaction rewrites the first level and what of the next it overlaps, about twelve tables; the
// room kept for it is 32, or, of few tables, as much again as all of them.
IndexBudget IndexBudget::of(std::uint64_t bytes_max) noexcept {
  KVTIER_CHECK(bytes_max > kUnseenBytes);
  IndexBudget budget;
  budget.tables_bytes = bytes_max - kUnseenBytes;
  budget.file_bytes = std::clamp<std::uint64_t>(budget.tables_bytes / 256, 1_MiB, 64_MiB);
  budget.work_bytes = std::min(budget.tables_bytes / 2, 32 * budget.file_bytes) + kBufferedBytes;
  return budget;
}

// Nothing is allocated ahead: what RocksDB would give back later counts as used until then.
rocksdb::DBOptions index_database_options(const IndexBudget&,
                                          std::shared_ptr<rocksdb::SstFileManager> tables,
                                          bool may_make) {
  rocksdb::DBOptions options;
  options.create_if_missing = may_make;
  options.create_missing_column_families = may_make;
  options.allow_fallocate = false;
  options.max_total_wal_size = kWalBytesMax / 2;  // seldom written families do not hold logs back
  options.max_background_jobs = 2;  // one flush, one compaction: leave the cores to the engine
  options.max_open_files = 256;
  options.keep_log_file_num = kTextLogs;
  options.max_log_file_size = kTextLogBytes;
  options.info_log_level = rocksdb::WARN_LEVEL;
  options.stats_dump_period_sec = 0;
  options.max_manifest_file_size = kManifestBytes;
  options.sst_file_manager = std::move(tables);
  // Whether and when to try again is the store's decision.
  options.max_bgerror_resume_count = 0;
  return options;
}

// Memory stays small too: the index is read only at start and when a slot is replaced.
rocksdb::ColumnFamilyOptions index_family_options(const IndexBudget& budget,
                                                  std::shared_ptr<rocksdb::Cache> cache) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = std::move(cache);
  table.cache_index_and_filter_blocks = true;  // counted in the cache, so bounded by it
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  rocksdb::ColumnFamilyOptions options;
  options.write_buffer_size = kWriteBufferBytes;
  options.max_write_buffer_number = kWriteBuffers;
  options.target_file_size_base = budget.file_bytes;
  options.max_bytes_for_level_base = 4 * budget.file_bytes;
  options.compression = rocksdb::kNoCompression;  // keys and ids are random
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

}  // namespace kvtier::storage
