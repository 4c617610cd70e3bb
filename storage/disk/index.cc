#include "storage/disk/index.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_manager.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <system_error>
#include <thread>

#include "client/base/check.h"
#include "client/base/fd.h"
#include "storage/disk/allocated_bytes.h"
#include "storage/disk/index_options.h"
#include "storage/disk/points.h"

namespace kvtier::storage {
namespace {

// In the order in which the families are opened; a batch names them by this number, which is also
// RocksDB's own as long as they are made in this order.
enum Family : std::uint32_t { kRecords, kStamps, kNamespaces, kMeta, kFamilies };
constexpr const char* kFamilyNames[kFamilies] = {"default", "lru", "ns", "meta"};
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
} __attribute__((packed));
static_assert(sizeof(PackedRecord) == 53);
static_assert(std::endian::native == std::endian::little);
constexpr std::uint8_t kPackedVersion = 1;

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
  const auto packed = value_in<PackedRecord>(slice);
  return packed && packed->version == kPackedVersion ? packed : std::nullopt;
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
  std::shared_ptr<rocksdb::SstFileManager> tables;

  explicit Impl(const Options& options)
      : directory(options.directory),
        store(options.store),
        env(options.env != nullptr ? options.env : rocksdb::Env::Default()),
        budget(IndexBudget::of(options.bytes_max)),
        tables(rocksdb::NewSstFileManager(env)) {
    tables->SetMaxAllowedSpaceUsage(budget.tables_bytes);
  }
  ~Impl() { close(); }

  void close() {
    for (auto* family : std::exchange(families, {})) (void)db->DestroyColumnFamilyHandle(family);
    if (db != nullptr) (void)db->Close();
    delete std::exchange(db, nullptr);
  }
  rocksdb::Status open(bool may_make, Compaction compaction) {
    const auto cache = rocksdb::NewLRUCache(kIndexCacheBytes);
    std::vector<rocksdb::ColumnFamilyDescriptor> wanted;
    for (const char* name : kFamilyNames) {
      wanted.emplace_back(name, index_family_options(budget, cache));
      wanted.back().options.disable_auto_compactions = compaction == Compaction::held;
    }
    return rocksdb::DB::Open(index_database_options(env, tables, may_make), directory.string(),
                             wanted, &families, &db);
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
  Error another_owner() const {
    return make_error(Errc::corrupt, "index " + directory.string() + ": belongs to another store");
  }
  std::unique_ptr<rocksdb::Iterator> iterate(Family family) const {
    rocksdb::ReadOptions options;
    options.fill_cache = false;
    options.readahead_size = 4_MiB;  // whole families are read, once
    std::unique_ptr<rocksdb::Iterator> rows(db->NewIterator(options, families[family]));
    rows->SeekToFirst();
    return rows;
  }
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
  impl_->put(kRecords, slice_of(entry.identity.key), slice_of(packed));
  touch(entry.identity.key, entry.last_access);
}

void Index::Batch::erase(const Key& key) {
  impl_->erase(kRecords, slice_of(key));
  impl_->erase(kStamps, slice_of(key));
}

void Index::Batch::touch(const Key& key, std::uint64_t stamp) {
  impl_->put(kStamps, slice_of(key), slice_of(stamp));
}

void Index::Batch::put_namespace(const NamespaceId& id, std::span<const std::byte> encoded) {
  impl_->put(kNamespaces, slice_of(id), slice_of(encoded));
}

Index::Index(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Index::~Index() = default;

Result<std::unique_ptr<Index>> Index::open(const Options& options) {
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
      !has_room() && (!gone.empty() || impl_->tables->GetTotalSize() > impl_->budget.tables_bytes);
  if (too_large) impl_->tables->SetMaxAllowedSpaceUsage(0);
  Result<void> done;
  for (std::size_t begin = 0; done && begin < gone.size(); begin += kPiece) {
    Batch batch;
    for (const Key& key : gone.subspan(begin, std::min(kPiece, gone.size() - begin))) {
      batch.erase(key);
    }
    done = commit(batch);
  }
  if (done && too_large) done = impl_->compact();
  impl_->tables->SetMaxAllowedSpaceUsage(impl_->budget.tables_bytes);
  return done;
}

// What RocksDB can mend in place it does; else its files are opened again, which also finds
// whatever was mounted in their place.
Result<void> Index::revive() {
  const std::unique_lock lock(impl_->mutex);
  if (impl_->db != nullptr && impl_->db->Resume().ok() && impl_->db->SyncWAL().ok()) return {};
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
  rocksdb::WriteOptions options;
  options.sync = true;
  const auto put = impl_->db->Put(options, impl_->families[kMeta], kCompleteKey, "1");
  if (!put.ok()) return impl_->error(put);
  incomplete_ = false;
  return {};
}

Result<void> Index::commit(Batch& batch) {
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
  const auto written = impl_->db->Write({}, &changes);
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
Result<Index::Contents> Index::load() const {
  Contents contents;
  std::uint64_t about = 0;
  (void)impl_->db->GetIntProperty(impl_->families[kRecords], "rocksdb.estimate-num-keys", &about);
  contents.entries.reserve(about);
  // The memory of millions of entries takes a while to come; the scan does not wait for it.
  std::jthread populating([reserved = std::span(contents.entries.data(), about)] {
    populate_in_pieces(std::as_writable_bytes(reserved));
  });
  const auto records = impl_->iterate(kRecords);
  const auto stamps = impl_->iterate(kStamps);
  for (; records->Valid(); records->Next()) {
    const auto key = value_in<Key>(records->key());
    const auto packed = record_in(records->value());
    if (!key) continue;
    for (; stamps->Valid() && stamps->key().compare(records->key()) < 0; stamps->Next()) {
      if (const auto stray = value_in<Key>(stamps->key())) contents.unreadable.push_back(*stray);
    }
    std::uint64_t stamp = 0;
    if (stamps->Valid() && stamps->key() == records->key()) {
      stamp = value_in<std::uint64_t>(stamps->value()).value_or(0);
      stamps->Next();
    }
    if (!packed) {
      contents.unreadable.push_back(*key);
      continue;
    }
    DiskEntry entry;
    entry.identity.key = *key;
    std::memcpy(entry.identity.ns.bytes.data(), packed->ns, sizeof packed->ns);
    std::memcpy(entry.identity.parent.bytes.data(), packed->parent, sizeof packed->parent);
    entry.identity.block_index = packed->block_index;
    entry.at = {packed->segment, packed->slot};
    entry.record_bytes = packed->record_bytes;
    entry.last_access = stamp;
    // The estimate may be too low.
    if (contents.entries.size() == about && populating.joinable()) populating.join();
    contents.entries.push_back(entry);
  }
  for (; stamps->Valid(); stamps->Next()) {
    if (const auto stray = value_in<Key>(stamps->key())) contents.unreadable.push_back(*stray);
  }
  if (!records->status().ok()) return impl_->error(records->status());
  if (!stamps->status().ok()) return impl_->error(stamps->status());
  return contents;
}

Result<std::vector<std::pair<NamespaceId, std::vector<std::byte>>>> Index::namespaces() const {
  const std::shared_lock lock(impl_->mutex);
  if (impl_->db == nullptr) return impl_->not_open();
  std::vector<std::pair<NamespaceId, std::vector<std::byte>>> found;
  const auto rows = impl_->iterate(kNamespaces);
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
  return impl_->tables->GetTotalSize() < impl_->budget.tables_bytes - impl_->budget.work_bytes;
}

std::uint64_t Index::file_bytes() const {
  return allocated_bytes(impl_->directory);
}

}  // namespace kvtier::storage
