#include "storage/index/index.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/perf_level.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <system_error>
#include <thread>

#include "core/base/check.h"
#include "storage/index/allocated_bytes.h"
#include "storage/index/index_options.h"
#include "storage/index/points.h"
#include "storage/index/regular_file.h"

namespace kvtier::storage {
namespace {

// In the order in which the families are opened; a batch names them by this number, which is also
// RocksDB's own as long as they are made in this order.
enum Family : std::uint32_t { kRecords, kStamps, kNamespaces, kMeta };
constexpr const char* kFamilyNames[kBusyFamilies + kQuietFamilies] = {"default", "lru", "ns",
                                                                      "meta"};
constexpr const char* kStoreKey = "store";
constexpr const char* kCompleteKey = "complete";

struct PackedRecord {
  std::uint8_t version;
  std::uint32_t segment;
  std::uint32_t slot;
  std::uint64_t record_bytes;
  std::byte ns[16];
  std::byte parent[16];
  std::uint32_t block_index;
  std::uint64_t stamp;  // when it was written; what came later is in the other family
} __attribute__((packed));
static_assert(sizeof(PackedRecord) == 61);
static_assert(std::endian::native == std::endian::little);
constexpr std::uint8_t kPackedVersion = 2;
constexpr std::size_t kFirstVersionBytes = 53;  // which had no stamp

template <class T>
rocksdb::Slice slice_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
rocksdb::Slice slice_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class T>
std::optional<T> value_in(const rocksdb::Slice& slice) {
  if (slice.size() != sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, slice.data(), sizeof value);
  return value;
}

std::optional<PackedRecord> record_in(const rocksdb::Slice& slice) {
  const bool first = slice.size() == kFirstVersionBytes && slice[0] == 1;
  if (!first && (slice.size() != sizeof(PackedRecord) || slice[0] != kPackedVersion)) {
    return std::nullopt;
  }
  PackedRecord packed{};
  std::memcpy(&packed, slice.data(), slice.size());
  return packed;
}

bool is_later_version(const rocksdb::Slice& slice) {
  return !slice.empty() && static_cast<std::uint8_t>(slice[0]) > kPackedVersion;
}

Error error_of(const rocksdb::Status& status, const std::string& what) {
  const bool missing = status.IsNotFound() || status.IsPathNotFound();
  const Errc code = status.IsCorruption() || missing               ? Errc::corrupt
                    : status.IsNoSpace() || status.IsMemoryLimit() ? Errc::no_space
                                                                   : Errc::io;
  return make_error(code, what + ": " + status.ToString());
}

}  // namespace

struct Index::Batch::Impl {
  // Handles are known to the index alone: a change is kept here until commit.
  struct Change {
    Family family;
    bool erase;
    std::string key;
    std::string value;
  };
  std::vector<Change> changes;

  void put(Family family, rocksdb::Slice key, rocksdb::Slice value) {
    changes.push_back({family, false, key.ToString(), value.ToString()});
  }
  void erase(Family family, rocksdb::Slice key) {
    changes.push_back({family, true, key.ToString(), {}});
  }
};

struct Index::Impl {
  std::filesystem::path directory;
  StoreId store;
  rocksdb::Env* env;
  IndexBudget budget;
  mutable std::shared_mutex mutex;  // exclusive while the database is closed and opened again
  rocksdb::DB* db = nullptr;        // null: could not be opened again
  std::vector<rocksdb::ColumnFamilyHandle*> families;
  std::shared_ptr<TableRoom> room;
  std::shared_ptr<rocksdb::Cache> cache;

  explicit Impl(const Options& options)
      : directory(options.directory),
        store(options.store),
        env(options.env != nullptr ? options.env : rocksdb::Env::Default()),
        budget(IndexBudget::of(options.bytes_max)),
        room(std::make_shared<TableRoom>(env, budget)) {}
  // What the buffers hold is in tables then: a start need not read it from the log again.
  ~Impl() {
    if (db != nullptr) (void)db->Flush(index_flush_options(), families);
    close();
  }

  void close() {
    room->watch(nullptr, {});
    for (auto* family : std::exchange(families, {})) (void)db->DestroyColumnFamilyHandle(family);
    if (db != nullptr) (void)db->Close();
    delete std::exchange(db, nullptr);
  }
  rocksdb::Status open(bool may_make, Compaction compaction) {
    cache = rocksdb::NewLRUCache(kIndexCacheBytes);
    std::vector<rocksdb::ColumnFamilyDescriptor> wanted;
    for (const char* name : kFamilyNames) {
      const bool busy = wanted.size() < kBusyFamilies;
      wanted.emplace_back(name, index_family_options(budget, busy, cache));
      wanted.back().options.disable_auto_compactions = compaction == Compaction::held;
    }
    const auto opened = rocksdb::DB::Open(index_database_options(env, budget, room, may_make),
                                          directory.string(), wanted, &families, &db);
    room->watch(db, families);
    return opened;
  }
  // Leaves nothing that was erased or written over.
  Result<void> compact() const {
    rocksdb::CompactRangeOptions options;
    options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
    for (auto* family : families) {
      const auto done = db->CompactRange(options, family, nullptr, nullptr);
      if (!done.ok()) return error(done);
    }
    return {};
  }
  // Whose it is, or NotFound.
  rocksdb::Status owner(StoreId& found) const {
    std::string value;
    const auto got = db->Get({}, families[kMeta], kStoreKey, &value);
    found = value_in<StoreId>(value).value_or(StoreId{});
    return got;
  }
  Error error(const rocksdb::Status& status) const {
    return error_of(status, "index " + directory.string());
  }
  Error not_open() const {
    return make_error(Errc::io, "index " + directory.string() + ": is not open");
  }
  Error later_version() const {
    return make_error(Errc::version,
                      "index " + directory.string() +
                          ": has entries of a later version than this program reads; nothing was "
                          "changed. Run the later version, or give it another directory");
  }
  Error another_owner() const {
    return make_error(Errc::corrupt, "index " + directory.string() + ": belongs to another store");
  }
  // Keys from `first` on and before `end`; one that is empty is no bound.
  struct KeyRange {
    KeyRange() = default;
    KeyRange(std::string first_key, std::string end_key)
        : first(std::move(first_key)), end(std::move(end_key)), end_slice(end) {}
    KeyRange(const KeyRange&) = delete;
    std::string first, end;
    rocksdb::Slice end_slice;  // iterators hold on to it
  };
  // `range` outlives it.
  std::unique_ptr<rocksdb::Iterator> iterate(Family family, const KeyRange& range) const {
    rocksdb::ReadOptions options;
    options.fill_cache = false;
    options.readahead_size = 4_MiB;         // all is read, once
    options.ignore_range_deletions = true;  // there are none
    if (!range.end.empty()) options.iterate_upper_bound = &range.end_slice;
    std::unique_ptr<rocksdb::Iterator> rows(db->NewIterator(options, families[family]));
    rows->Seek(range.first);
    return rows;
  }
  Result<void> read(const KeyRange& range, IndexEntries& entries, std::vector<Key>& unreadable,
                    const Progress& progress) const;
};

Index::Batch::Batch() : impl_(std::make_unique<Impl>()) {}
Index::Batch::~Batch() = default;
Index::Batch::Batch(Batch&&) noexcept = default;
bool Index::Batch::empty() const {
  return impl_->changes.empty();
}
void Index::Batch::clear() {
  impl_->changes.clear();
}

void Index::Batch::put(const DiskEntry& entry) {
  PackedRecord packed{};
  packed.version = kPackedVersion;
  packed.segment = entry.at.segment;
  packed.slot = entry.at.slot;
  packed.record_bytes = entry.record_bytes;
  std::memcpy(packed.ns, entry.identity.ns.bytes.data(), sizeof packed.ns);
  std::memcpy(packed.parent, entry.identity.parent.bytes.data(), sizeof packed.parent);
  packed.block_index = entry.identity.block_index;
  packed.stamp = entry.last_access;
  impl_->put(kRecords, slice_of(entry.identity.key), slice_of(packed));
}

void Index::Batch::erase(const Key& key) {
  impl_->erase(kRecords, slice_of(key));
  impl_->erase(kStamps, slice_of(key));
}

void Index::Batch::touch(const Key& key, std::uint64_t stamp) {
  impl_->put(kStamps, slice_of(key), slice_of(stamp));
}

void Index::Batch::put_namespace(const NamespaceId& id, std::span<const std::byte> encoded) {
  if (encoded.empty()) return impl_->erase(kNamespaces, slice_of(id));
  impl_->put(kNamespaces, slice_of(id), slice_of(encoded));
}

Index::Index(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Index::~Index() = default;

Result<std::unique_ptr<Index>> Index::open(const Options& options) {
  if (const auto regular = only_regular_files_in(options.directory); !regular)
    return regular.error();
  auto impl = std::make_unique<Impl>(options);
  const auto opened = impl->open(true, options.compaction);
  if (!opened.ok()) return impl->error(opened);

  std::unique_ptr<Index> index(new Index(std::move(impl)));
  Impl& made = *index->impl_;
  StoreId owner{};
  const auto found = made.owner(owner);
  if (found.IsNotFound()) {
    const auto put = made.db->Put({}, made.families[kMeta], kStoreKey, slice_of(options.store));
    if (!put.ok()) return made.error(put);
    index->incomplete_ = true;
    return index;
  }
  if (!found.ok()) return made.error(found);
  if (owner != options.store) return made.another_owner();
  std::string value;
  index->incomplete_ = !made.db->Get({}, made.families[kMeta], kCompleteKey, &value).ok();
  return index;
}

void Index::resume_compaction() {
  const std::shared_lock lock(impl_->mutex);
  // An index that is refused here is offline, and compacts again when it is revived.
  if (impl_->db != nullptr) (void)impl_->db->EnableAutoCompaction(impl_->families);
}

// The tables' own bound would refuse the very writes that bring them below it. In pieces, so that
// the log stays below its own.
Result<void> Index::prune(std::span<const Key> gone) {
  constexpr std::size_t kPiece = 4096;
  // A table too many is no reason to sort all of them again at every start.
  const bool too_large =
      !has_room() && (!gone.empty() || impl_->room->bytes() > impl_->budget.tables_bytes);
  if (too_large) impl_->room->lift();
  Result<void> done;
  for (std::size_t begin = 0; done && begin < gone.size(); begin += kPiece) {
    Batch batch;
    for (const Key& key : gone.subspan(begin, std::min(kPiece, gone.size() - begin))) {
      batch.erase(key);
    }
    done = commit(batch);
  }
  if (done && too_large) done = impl_->compact();
  impl_->room->hold();
  return done;
}

// What RocksDB can mend in place it does; else its files are opened again, which also finds
// whatever was mounted in their place. Tables are written of what the log holds: a sync of the log
// that has failed may have lost some of it, and the next one would say nothing of that.
Result<void> Index::revive() {
  const std::unique_lock lock(impl_->mutex);
  if (impl_->db != nullptr && impl_->db->Resume().ok() &&
      impl_->db->Flush(index_flush_options(), impl_->families).ok()) {
    return {};
  }
  impl_->close();
  const auto opened = impl_->open(false, Compaction::runs);
  if (!opened.ok()) {
    impl_->close();
    return impl_->error(opened);
  }
  StoreId owner{};
  const auto found = impl_->owner(owner);
  if (found.ok() && owner == impl_->store) return {};
  impl_->close();
  return found.ok() || found.IsNotFound() ? impl_->another_owner() : impl_->error(found);
}

Result<void> Index::remove(const std::filesystem::path& directory) {
  std::error_code failed;
  std::filesystem::remove_all(directory, failed);
  if (failed) {
    return make_error(Errc::io, "cannot remove " + directory.string() + ": " + failed.message());
  }
  return {};
}

Result<void> Index::mark_complete() {
  const std::shared_lock lock(impl_->mutex);
  const auto flushed = impl_->db->Flush(index_flush_options(), impl_->families);
  if (!flushed.ok()) return impl_->error(flushed);
  rocksdb::WriteOptions options;
  options.sync = true;
  const auto put = impl_->db->Put(options, impl_->families[kMeta], kCompleteKey, "1");
  if (!put.ok()) return impl_->error(put);
  incomplete_ = false;
  return {};
}

Result<void> Index::commit(Batch& batch, Log log) {
  if (batch.empty()) return {};
  const std::shared_lock lock(impl_->mutex);
  if (impl_->db == nullptr) {
    batch.clear();
    return impl_->not_open();
  }
  rocksdb::WriteBatch changes;
  for (const auto& change : batch.impl_->changes) {
    auto* family = impl_->families[change.family];
    const auto added = change.erase ? changes.Delete(family, change.key)
                                    : changes.Put(family, change.key, change.value);
    KVTIER_CHECK(added.ok());
  }
  batch.clear();
  KVTIER_STORAGE_POINT("storage.index.batch_built");
  rocksdb::WriteOptions options;
  options.disableWAL = log == Log::none;
  const auto written = impl_->db->Write(options, &changes);
  if (!written.ok()) return impl_->error(written);
  KVTIER_STORAGE_POINT("storage.index.batch_committed");
  return {};
}

Result<std::optional<DiskLocation>> Index::find(const Key& key) const {
  const std::shared_lock lock(impl_->mutex);
  if (impl_->db == nullptr) return impl_->not_open();
  rocksdb::PinnableSlice value;
  const auto got = impl_->db->Get({}, impl_->families[kRecords], slice_of(key), &value);
  if (got.IsNotFound()) return std::optional<DiskLocation>{};
  if (!got.ok()) return impl_->error(got);
  const auto packed = record_in(value);
  if (!packed) return std::optional<DiskLocation>{};
  return std::optional<DiskLocation>({packed->segment, packed->slot});
}

// Both families are in key order: one pass over each.
Result<void> Index::Impl::read(const KeyRange& range, IndexEntries& entries,
                               std::vector<Key>& unreadable, const Progress& progress) const {
  constexpr std::uint64_t kRowsPerProgress = 1U << 18;
  std::uint64_t rows = 0;
  const auto records = iterate(kRecords, range);
  const auto stamps = iterate(kStamps, range);
  for (; records->Valid(); records->Next()) {
    if (progress && ++rows % kRowsPerProgress == 0)
      progress("Reading the index " + directory.string());
    const auto key = value_in<Key>(records->key());
    const auto packed = record_in(records->value());
    if (!key) continue;
    for (; stamps->Valid() && stamps->key().compare(records->key()) < 0; stamps->Next()) {
      if (const auto stray = value_in<Key>(stamps->key())) unreadable.push_back(*stray);
    }
    std::uint64_t stamp = 0;
    if (stamps->Valid() && stamps->key() == records->key()) {
      stamp = value_in<std::uint64_t>(stamps->value()).value_or(0);
      stamps->Next();
    }
    if (!packed && is_later_version(records->value())) return later_version();
    if (!packed) {
      unreadable.push_back(*key);
      continue;
    }
    DiskEntry entry;
    entry.identity.key = *key;
    std::memcpy(entry.identity.ns.bytes.data(), packed->ns, sizeof packed->ns);
    std::memcpy(entry.identity.parent.bytes.data(), packed->parent, sizeof packed->parent);
    entry.identity.block_index = packed->block_index;
    entry.at = {packed->segment, packed->slot};
    entry.record_bytes = packed->record_bytes;
    entry.last_access = std::max(stamp, packed->stamp);
    entries.push_back(entry);
  }
  for (; stamps->Valid(); stamps->Next()) {
    if (const auto stray = value_in<Key>(stamps->key())) unreadable.push_back(*stray);
  }
  if (!records->status().ok()) return error(records->status());
  if (!stamps->status().ok()) return error(stamps->status());
  return {};
}

// Keys are hashes, so that ranges of their first byte are about as large as each other.
Result<Index::Contents> Index::load(const Progress& progress) const {
  constexpr std::uint64_t kWorthAThread = 1 << 16;
  constexpr unsigned kPartsMax = 4;
  std::uint64_t about = 0;
  (void)impl_->db->GetIntProperty(impl_->families[kRecords], "rocksdb.estimate-num-keys", &about);
  const unsigned parts = static_cast<unsigned>(std::clamp<std::uint64_t>(
      about / kWorthAThread, 1, std::clamp(std::thread::hardware_concurrency(), 1U, kPartsMax)));
  const auto begin_of = [parts](unsigned part) {
    return part == 0 || part == parts ? std::string()
                                      : std::string(1, static_cast<char>(256 * part / parts));
  };
  Contents contents;
  contents.parts.resize(parts);
  std::vector<std::vector<Key>> unreadable(parts);
  std::vector<Result<void>> results(parts);
  const auto read = [&](unsigned part) {
    rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable);  // its counters are a tenth of the time
    results[part] = impl_->read({begin_of(part), begin_of(part + 1)}, contents.parts[part],
                                unreadable[part], part == 0 ? progress : Progress());
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned part = 1; part < parts; ++part) threads.emplace_back(read, part);
    read(0);
  }
  for (unsigned part = 0; part < parts; ++part) {
    if (!results[part]) return results[part].error();
    contents.unreadable.insert(contents.unreadable.end(), unreadable[part].begin(),
                               unreadable[part].end());
  }
  return contents;
}

Result<std::vector<std::pair<NamespaceId, std::vector<std::byte>>>> Index::namespaces() const {
  const std::shared_lock lock(impl_->mutex);
  if (impl_->db == nullptr) return impl_->not_open();
  std::vector<std::pair<NamespaceId, std::vector<std::byte>>> found;
  const Impl::KeyRange all;
  const auto rows = impl_->iterate(kNamespaces, all);
  for (; rows->Valid(); rows->Next()) {
    const auto id = value_in<NamespaceId>(rows->key());
    if (!id) continue;
    const auto* bytes = reinterpret_cast<const std::byte*>(rows->value().data());
    found.emplace_back(*id, std::vector<std::byte>(bytes, bytes + rows->value().size()));
  }
  if (!rows->status().ok()) return impl_->error(rows->status());
  return found;
}

Result<void> Index::sync() {
  const std::shared_lock lock(impl_->mutex);
  if (impl_->db == nullptr) return impl_->not_open();
  const auto synced = impl_->db->SyncWAL();
  if (!synced.ok()) return impl_->error(synced);
  return {};
}

bool Index::has_room() const {
  return impl_->room->is_left();
}

std::uint64_t Index::memory_bytes() const {
  const std::shared_lock lock(impl_->mutex);
  if (impl_->db == nullptr) return 0;
  std::uint64_t bytes = impl_->cache->GetUsage();
  for (const auto& part : {rocksdb::DB::Properties::kCurSizeAllMemTables,
                           rocksdb::DB::Properties::kEstimateTableReadersMem}) {
    std::uint64_t found = 0;
    if (impl_->db->GetAggregatedIntProperty(part, &found)) bytes += found;
  }
  return bytes;
}

std::uint64_t Index::file_bytes() const {
  return allocated_bytes(impl_->directory);
}

}  // namespace kvtier::storage
