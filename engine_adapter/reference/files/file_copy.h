// A whole file, read once into memory of this process alone. What happens to the file afterwards,
// written in place, cut short or replaced, changes none of these bytes; so a digest of them is of
// what is computed with. A mapping has neither property: it shows what is written to the file, and
// ends the process where the file has become shorter.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <utility>

#include "kvtier/result.h"

namespace kvtier::engine {

class FileCopy {
 public:
  FileCopy() = default;
  FileCopy(FileCopy&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  FileCopy& operator=(FileCopy&& other) noexcept;
  ~FileCopy();

  // Errors: not_found, io (also where it is written to meanwhile), no_space (no memory for it),
  // malformed (an empty file).
  static Result<FileCopy> read(const std::filesystem::path& path);
  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace kvtier::engine
