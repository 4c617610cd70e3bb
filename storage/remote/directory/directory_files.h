// The files of a store in a shared directory. Every call may take as long as a hung file server
// likes, so none is made on a thread that somebody waits for. Any thread.
//
//   DIR/FORMAT          what the directory is, and the version of its form
//   DIR/NOT-MOUNTED     in a bare directory: what belongs there is not mounted; made by people
//   DIR/new/*           values that are being written
//   DIR/xyz/NAME        a value; xyz are the last three digits of its name
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "kvtier/key.h"
#include "kvtier/result.h"

namespace kvtier::storage {

class DirectoryFiles {
 public:
  // `expiry` 0: none.
  DirectoryFiles(std::filesystem::path directory, std::chrono::seconds expiry);

  // Whether the directory is a store of this version; makes one where it is empty and `may_make`.
  // Errors: io (not there, not mounted), version, invalid (something else); each with the mend.
  Result<void> check(bool may_make) const;

  // Whether there is a value that has not expired. Errors: io.
  Result<bool> has(const Key& key) const;
  // Fills `value`. Errors: not_found (expired too), corrupt (not of that length, not a file), io.
  Result<void> read(const Key& key, std::span<std::byte> value) const;
  // The whole value is there, or the earlier one. Errors: no_space, io, unavailable (the file
  // system takes no writes).
  Result<void> write(const Key& key, std::span<const std::byte> first,
                     std::span<const std::byte> rest) const;
  // Errors: io, unavailable.
  Result<void> erase(const Key& key) const;
  // Whether a value of so many bytes could be written now. Errors: as write().
  Result<void> try_write(std::uint64_t bytes) const;

  // Removes what writers that died have left and, of one folder after the other, what has expired.
  void clean_up();

 private:
  std::filesystem::path path_of(const Key& key) const;
  Result<std::filesystem::path> write_new(std::span<const std::byte> first,
                                          std::span<const std::byte> rest) const;
  Error failure(const std::string& what, int code) const;
  bool expired(std::int64_t modified_s) const;

  const std::filesystem::path directory_;
  const std::chrono::seconds expiry_;
  unsigned next_folder_ = 0;
};

}  // namespace kvtier::storage
