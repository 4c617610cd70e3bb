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

// In a bare directory that a file system is to be mounted over: where it can be seen, the file
// system is not there, and is waited for.
inline constexpr const char* kNotMountedMark = "NOT-MOUNTED";

// What of the capacity the index's files may take.
std::uint64_t index_capacity_bytes(const RecordStoreOptions& options) noexcept;

class StoreDirectory {
 public:
  // Makes (unless may_create is off) or opens it and holds its lock until destruction. Errors:
  // those of open_record_store().
  static Result<StoreDirectory> open(const RecordStoreOptions& options);
  // Whether a directory that could not be opened for this reason may come late: it has a store, of
  // whatever version, or waits for a mount.
  static bool may_come(const std::filesystem::path& directory, const Error& why);

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
  std::filesystem::path bad_places() const { return path_ / "BAD"; }

 private:
  std::filesystem::path path_;
  StoreId id_{};
  std::uint64_t segment_bytes_ = 0;
  UniqueFd lock_;
};

}  // namespace kvtier::storage
