#include "storage/index/index_options.h"

#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "core/base/check.h"

namespace kvtier::storage {
namespace {

constexpr std::uint64_t kWriteBufferBytes = 512_KiB;
constexpr int kWriteBuffers = 2;
constexpr std::uint64_t kManifestBytes = 1_MiB;

// The write-ahead log holds no more than the buffers that were not flushed yet, and a batch.
constexpr std::uint64_t kWalBytesMax = kIndexFamilies * kWriteBuffers * kWriteBufferBytes + 1_MiB;
// Two manifests while one follows the other; OPTIONS, LOCK and CURRENT are small. A flush is
// written before its table is counted.
constexpr std::uint64_t kUnseenBytes =
    kWalBytesMax + 2 * kManifestBytes + kWriteBufferBytes + 2_MiB;
// Records and stamps come together; what their buffers hold becomes tables after the last record
// was let in.
constexpr std::uint64_t kBufferedBytes = 2ULL * kWriteBuffers * kWriteBufferBytes;
static_assert(kUnseenBytes + 2 * kBufferedBytes < 32_MiB);

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
rocksdb::DBOptions index_database_options(rocksdb::Env* env,
                                          std::shared_ptr<rocksdb::SstFileManager> tables,
                                          bool may_make) {
  rocksdb::DBOptions options;
  options.env = env;
  options.create_if_missing = may_make;
  options.create_missing_column_families = may_make;
  options.allow_fallocate = false;
  options.max_total_wal_size = kWalBytesMax / 2;  // seldom written families do not hold logs back
  options.max_background_jobs = 2;  // one flush, one compaction: leave the cores to the engine
  options.max_open_files = 256;
  options.info_log = std::make_shared<TextLog>();
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
  table.block_size = 16_KiB;  // rows are read one after the other at a start, and seldom else
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
