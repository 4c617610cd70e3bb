// The directory of a record store: whose it is (`FORMAT`), that nobody else uses it (`LOCK`), and
// whether the configured capacity can be had.
#pragma once

#include <cstdint>
#include <filesystem>

#include "core/base/fd.h"
#include "kvtier/result.h"
#include "storage/index/segments.h"
#include "storage/index/store_options.h"

namespace kvtier::storage {

// Versions 1 and 2 are taken over when they are opened: their records and index are as good here. A
// program that knows version 1 alone is kept from records that it would take for damaged, and one
// that knows version 2 from bringing back what was erased.
inline constexpr std::uint32_t kStoreVersion = 3;
inline constexpr std::uint32_t kStoreVersionOldest = 1;

// What of the capacity the index's files may take.
std::uint64_t index_capacity_bytes(const RecordStoreOptions& options) noexcept;

class StoreDirectory {
 public:
  // Makes (unless may_create is off) or opens it and holds its lock until destruction. Errors:
  // those of open_record_store().
  static Result<StoreDirectory> open(const RecordStoreOptions& options);
  // Whether there is a store, of whatever version.
  static bool was_made(const std::filesystem::path& directory);

  // Whether the path still leads to the directory that was opened. Errors: io.
  Result<void> look() const;
  // Whether it can be used again: FORMAT is this store's, the lock is held (taken again where
  // another file system was mounted), a small file can be written, synced and read back. Errors:
  // io, no_space, version, refused.
  Result<void> probe();

  const StoreId& id() const noexcept { return id_; }
  std::filesystem::path index() const { return path_ / "index"; }
  std::filesystem::path segments() const { return path_ / "segments"; }
  std::filesystem::path erased() const { return path_ / "ERASED"; }

 private:
  std::filesystem::path path_;
  StoreId id_{};
  UniqueFd lock_;
};

}  // namespace kvtier::storage
