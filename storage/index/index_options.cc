#include "storage/index/index_options.h"

#include <rocksdb/env.h>
#include <rocksdb/table.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "core/base/check.h"

namespace kvtier::storage {
namespace {

constexpr std::uint64_t kBufferBytesMin = 512_KiB, kBufferBytesMax = 16_MiB;
constexpr int kBuffers = 2;  // one fills while the other is written to a table
constexpr std::uint64_t kQuietBufferBytes = 64_KiB;
constexpr std::uint64_t kFreshBytesMax = 512_MiB;
constexpr int kFreshTablesMin = 4;
constexpr std::uint64_t kManifestBytes = 1_MiB;

// The write-ahead log holds no more than the buffers that were not flushed yet, and a batch.
constexpr std::uint64_t log_bytes_of(std::uint64_t buffer_bytes) noexcept {
  return kBuffers * (kBusyFamilies * buffer_bytes + kQuietFamilies * kQuietBufferBytes) + 1_MiB;
}
// Two manifests while one follows the other; OPTIONS, LOCK and CURRENT are small. A flush is
// written before its table is counted.
constexpr std::uint64_t unseen_bytes_of(std::uint64_t buffer_bytes) noexcept {
  return log_bytes_of(buffer_bytes) + 2 * kManifestBytes + buffer_bytes + 2_MiB;
}
// Records and stamps come together; what their buffers hold becomes tables after the last record
// was let in.
constexpr std::uint64_t buffered_bytes_of(std::uint64_t buffer_bytes) noexcept {
  return kBusyFamilies * kBuffers * buffer_bytes;
}
static_assert(unseen_bytes_of(kBufferBytesMin) + 2 * buffered_bytes_of(kBufferBytesMin) < 32_MiB);

// RocksDB's own text log is a file beside the index, and an assertion in it ends the process when
// that file can twice not be written. What it has to say is in the status of the call that failed.
class TextLog final : public rocksdb::Logger {
 public:
  TextLog() : Logger(rocksdb::WARN_LEVEL) {}
  using Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    std::array<char, 512> line{};
    (void)std::vsnprintf(line.data(), line.size(), format, arguments);
    spdlog::debug("index: {}", line.data());
  }
};

}  // namespace

// What a turnover of records costs in writes is how often they are merged. Buffers become tables
// that overlap all others; `fresh_bytes` of those are gathered, so that merging them into the level
// below rewrites it once for all. That level is twice as large, or, of an index that fits, all
// there is: then an entry is written to the log, to a table and to its level two or three times.
//
// A merge rewrites the fresh tables and what of the next level they overlap, which is all of it,
// and below that about twelve tables; the room kept for it is 32, or, of few tables, as much again
// as all of them.
IndexBudget IndexBudget::of(std::uint64_t bytes_max) noexcept {
  IndexBudget budget;
  budget.buffer_bytes =
      std::clamp(bytes_max / 256 / 64_KiB * 64_KiB, kBufferBytesMin, kBufferBytesMax);
  const std::uint64_t unseen = unseen_bytes_of(budget.buffer_bytes);
  KVTIER_CHECK(bytes_max > unseen);
  budget.log_bytes = log_bytes_of(budget.buffer_bytes);
  budget.memory_bytes =
      kBuffers * (kBusyFamilies * budget.buffer_bytes + kQuietFamilies * kQuietBufferBytes) +
      kIndexCacheBytes;
  budget.tables_bytes = bytes_max - unseen;
  budget.file_bytes = std::clamp<std::uint64_t>(budget.tables_bytes / 256, 1_MiB, 64_MiB);
  budget.fresh_bytes = std::clamp<std::uint64_t>(
      budget.tables_bytes / 128, kFreshTablesMin * budget.buffer_bytes, kFreshBytesMax);
  budget.work_bytes = std::min(budget.tables_bytes / 2, 32 * budget.file_bytes) +
                      buffered_bytes_of(budget.buffer_bytes);
  return budget;
}

// Nothing is allocated ahead: what RocksDB would give back later counts as used until then.
rocksdb::DBOptions index_database_options(rocksdb::Env* env, const IndexBudget& budget,
                                          std::shared_ptr<rocksdb::SstFileManager> tables,
                                          bool may_make) {
  rocksdb::DBOptions options;
  options.env = env;
  options.create_if_missing = may_make;
  options.create_missing_column_families = may_make;
  options.allow_fallocate = false;
  options.max_total_wal_size = budget.log_bytes / 2;  // quiet families do not hold logs back
  // One flush, and merges of both busy families, on threads of their own that all directories
  // share.
  options.max_background_jobs = 4;
  options.max_open_files = 256;
  options.info_log = std::make_shared<TextLog>();
  options.stats_dump_period_sec = 0;
  options.max_manifest_file_size = kManifestBytes;
  options.sst_file_manager = std::move(tables);
  // Whether and when to try again is the store's decision.
  options.max_bgerror_resume_count = 0;
  return options;
}

// The index is read from end to end at a start, and by key only where something failed, so that no
// filter and no large cache would pay.
rocksdb::ColumnFamilyOptions index_family_options(const IndexBudget& budget, bool busy,
                                                  std::shared_ptr<rocksdb::Cache> cache) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = std::move(cache);
  table.block_size = 16_KiB;                   // rows are read one after the other
  table.cache_index_and_filter_blocks = true;  // counted in the cache, so bounded by it
  rocksdb::ColumnFamilyOptions options;
  options.write_buffer_size = busy ? budget.buffer_bytes : kQuietBufferBytes;
  options.max_write_buffer_number = kBuffers;
  const int fresh = static_cast<int>(budget.fresh_bytes / budget.buffer_bytes);
  options.level0_file_num_compaction_trigger = fresh;
  // A merge takes a while; what comes meanwhile is not held up before twice as much waits.
  options.level0_slowdown_writes_trigger = 2 * fresh + 16;
  options.level0_stop_writes_trigger = 3 * fresh + 32;
  options.target_file_size_base = budget.file_bytes;
  options.max_bytes_for_level_base = std::max(4 * budget.file_bytes, 2 * budget.fresh_bytes);
  options.compression = rocksdb::kNoCompression;  // keys and ids are random
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

}  // namespace kvtier::storage
