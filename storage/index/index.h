// The index of the disk tier: a RocksDB of key -> where the record lies and whose it is, beside it
// the LRU stamps and the namespaces. Its values are packed little-endian and begin with their
// version (docs/format.md).
//
// Calls may come from any thread; revive() waits for the others. A commit survives the end of this
// process at once and a power loss after sync().
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvtier/result.h"
#include "storage/index/index_entries.h"
#include "storage/index/segments.h"
#include "storage/index/store_options.h"

namespace kvtier::storage {

class Index {
 public:
  // Changes that become visible together, in the order in which they were made.
  class Batch {
   public:
    Batch();
    ~Batch();
    Batch(Batch&&) noexcept;

    void put(const DiskEntry& entry);  // with its stamp
    void erase(const Key& key);        // with its stamp
    void touch(const Key& key, std::uint64_t stamp);
    // Without an encoding it is removed.
    void put_namespace(const NamespaceId& id, std::span<const std::byte> encoded);
    bool empty() const;
    void clear();

   private:
    friend class Index;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  struct Contents {
    std::vector<IndexEntries> parts;  // in no order
    std::vector<Key> unreadable;  // values of another version or length, and stamps of no record
  };

  enum class Compaction { runs, held };
  struct Options {
    std::filesystem::path directory;
    StoreId store{};
    // What its files may take together: tables are kept to all but a fixed part for logs.
    std::uint64_t bytes_max = 0;
    // Held until resume_compaction(), load() has the processors and the disk to itself.
    Compaction compaction = Compaction::runs;
    rocksdb::Env* env = nullptr;  // null: the system's files
  };
  // Opens or makes it. Errors: corrupt (damaged, files missing, or another store's: remove() and
  // rebuild), io.
  static Result<std::unique_ptr<Index>> open(const Options& options);
  void resume_compaction();
  // Erases these, however many. Where the tables pass their share, which may have been lowered, it
  // then makes them as small as what they hold; they may grow a little before. While nothing else
  // is called. Errors: io, no_space.
  Result<void> prune(std::span<const Key> gone);
  // Removes a damaged index. Errors: io.
  static Result<void> remove(const std::filesystem::path& directory);
  ~Index();

  // Whether open() made it, or found one whose building had not ended.
  bool is_incomplete() const noexcept { return incomplete_; }
  // Says that it holds all there is to hold, which is on stable storage then. Errors: io, no_space.
  Result<void> mark_complete();

  // Of an index that is not complete, changes need no log: it is made anew after whatever ends this
  // process. Errors: io, no_space.
  enum class Log { kept, none };
  Result<void> commit(Batch& batch, Log log = Log::kept);
  // Errors: io, corrupt.
  Result<std::optional<DiskLocation>> find(const Key& key) const;
  // Large ones are read by several threads, and `progress` hears of it now and then, on the
  // caller's. Errors: io, corrupt, version (it has entries of a later one).
  using Progress = std::function<void(const std::string&)>;
  Result<Contents> load(const Progress& progress = {}) const;
  Result<std::vector<std::pair<NamespaceId, std::vector<std::byte>>>> namespaces() const;
  // Errors: io.
  Result<void> sync();
  // After a failure: makes it usable again as it is on disk, without losing a commit. Errors: io,
  // no_space, corrupt.
  Result<void> revive();
  // Whether records may be added: what could still be written by flushes and compactions then stays
  // below bytes_max.
  bool has_room() const;
  // Allocated for its files now.
  std::uint64_t file_bytes() const;
  // In its write buffers, its cache and what it knows of its tables, now.
  std::uint64_t memory_bytes() const;

 private:
  struct Impl;
  explicit Index(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
  bool incomplete_ = false;
};

}  // namespace kvtier::storage
