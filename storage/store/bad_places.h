// The places of a store's segments that are never used again: what was written there could not be
// read (RecordStore::test_place()). They are remembered beside the index, each durable before it is
// told, so that a restart does not try them anew; a store without the file has none.
//
// A place is a range of bytes of a segment's file, whatever slots the segment is cut into later.
// What of the file cannot be read is left out: such places are found again.
//
// Owned by who has the store's directory: the opener first, then the store's thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "core/base/fd.h"
#include "storage/index/store_options.h"

namespace kvtier::storage {

class BadPlaces {
 public:
  static constexpr std::size_t kMost = 4096;

  // Errors: io.
  static Result<BadPlaces> open(const std::filesystem::path& file);

  std::span<const BadPlace> all() const noexcept { return places_; }
  // Durable when this returns. Errors: io, no_space (also: as many as there can be).
  Result<void> add(const BadPlace& place);

 private:
  explicit BadPlaces(std::filesystem::path file) : file_(std::move(file)) {}
  Result<void> read();
  Result<void> open_to_write();

  std::filesystem::path file_;
  UniqueFd fd_;              // once there was something to add
  std::size_t written_ = 0;  // whole entries of the file
  std::vector<BadPlace> places_;
};

}  // namespace kvtier::storage
