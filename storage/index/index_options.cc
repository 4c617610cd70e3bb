#include "storage/index/index_options.h"

#include <rocksdb/env.h>
#include <rocksdb/table.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <utility>

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
// and below that about twelve tables. While writes outrun the merges there are two and a half times
// as many fresh tables, and the level grows by as much, since RocksDB merges first what is furthest
// past its size. The room kept is for that, for 32 tables at least, or, of few tables, as much
// again as all of them.
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
  budget.level_bytes = std::max(4 * budget.file_bytes, 2 * budget.fresh_bytes);
  const auto stop = static_cast<std::uint64_t>(budget.fresh_tables_stop());
  const auto fresh = static_cast<std::uint64_t>(budget.fresh_tables());
  const std::uint64_t merge = stop * budget.buffer_bytes + budget.level_bytes * stop / fresh;
  budget.work_bytes = std::min(budget.tables_bytes / 2, std::max(32 * budget.file_bytes, merge)) +
                      buffered_bytes_of(budget.buffer_bytes);
  return budget;
}

TableRoom::TableRoom(rocksdb::Env* env, const IndexBudget& budget)
    : tables_(rocksdb::NewSstFileManager(env)),
      bytes_max_(budget.tables_bytes),
      work_bytes_(budget.work_bytes),
      fresh_tables_slow_(static_cast<std::uint64_t>(budget.fresh_tables_slow())) {
  look();
}

void TableRoom::watch(rocksdb::DB* db, std::span<rocksdb::ColumnFamilyHandle* const> families) {
  const std::lock_guard lock(mutex_);
  db_ = db;
  busy_.assign(families.begin(), families.begin() + std::min(families.size(), kBusyFamilies));
  look();
}

void TableRoom::lift() {
  const std::lock_guard lock(mutex_);
  lifted_ = true;
  look();
}

void TableRoom::hold() {
  const std::lock_guard lock(mutex_);
  lifted_ = false;
  look();
}

void TableRoom::OnFlushCompleted(rocksdb::DB*, const rocksdb::FlushJobInfo&) {
  const std::lock_guard lock(mutex_);
  look();
}

void TableRoom::OnCompactionCompleted(rocksdb::DB*, const rocksdb::CompactionJobInfo&) {
  const std::lock_guard lock(mutex_);
  look();
}

void TableRoom::look() {
  static const std::string kFresh = rocksdb::DB::Properties::kNumFilesAtLevelPrefix + "0";
  const bool held_up = std::ranges::any_of(busy_, [this](rocksdb::ColumnFamilyHandle* family) {
    std::string fresh;
    return db_ != nullptr && db_->GetProperty(family, kFresh, &fresh) &&
           std::stoull(fresh) >= fresh_tables_slow_;
  });
  tables_->SetMaxAllowedSpaceUsage(lifted_ || held_up ? 0 : bytes_max_);
}

rocksdb::FlushOptions index_flush_options() {
  rocksdb::FlushOptions options;
  options.allow_write_stall = true;
  return options;
}

// Nothing is allocated ahead: what RocksDB would give back later counts as used until then.
rocksdb::DBOptions index_database_options(rocksdb::Env* env, const IndexBudget& budget,
                                          std::shared_ptr<TableRoom> room, bool may_make) {
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
  options.sst_file_manager = room->tables();
  options.listeners.push_back(std::move(room));
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
  options.level0_file_num_compaction_trigger = budget.fresh_tables();
  options.level0_slowdown_writes_trigger = budget.fresh_tables_slow();
  options.level0_stop_writes_trigger = budget.fresh_tables_stop();
  options.target_file_size_base = budget.file_bytes;
  options.max_bytes_for_level_base = budget.level_bytes;
  options.compression = rocksdb::kNoCompression;  // keys and ids are random
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

}  // namespace kvtier::storage
