// The segment files, `segments/NNNNNN.seg`: [header page][slot 0][slot 1]... Every file, its header
// included, is `segment_bytes` long and allocated when it is made (docs/format.md).
//
// Only the thread that owns the store's directory at the time calls anything here: the opener
// first, then the store's thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "client/record/record.h"
#include "kvtier/result.h"
#include "storage/disk/record_store.h"

namespace kvtier::storage {

using StoreId = std::array<std::byte, 16>;

inline constexpr std::uint64_t kSegmentMagic = 0x313047455354564BULL;  // "KVTSEG01" in memory
inline constexpr std::uint32_t kSegmentVersion = 1;
inline constexpr std::uint64_t kSegmentHeaderBytes = kRecordAlignment;

struct SegmentHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t segment;
  std::uint64_t slot_bytes;
  std::uint64_t segment_bytes;
  StoreId store;
  std::uint64_t checksum;  // XXH3-64 of the header with checksum taken as 0
};
static_assert(sizeof(SegmentHeader) == 56);

constexpr std::uint64_t slot_offset(std::uint32_t slot, std::uint64_t slot_bytes) noexcept {
  return kSegmentHeaderBytes + slot * slot_bytes;
}

class Segments {
 public:
  Segments(std::filesystem::path directory, StoreId store, std::uint64_t segment_bytes,
           std::uint32_t segments_max);

  // Reads the header of every file there is. A file that is not a segment of this store is left
  // alone, and made anew when its place is needed. Errors: io.
  Result<void> load();

  // Makes the segment or gives it to another slot size; nothing in it may be in use. Errors: io,
  // no_space, invalid (past the capacity).
  Result<void> prepare(std::uint32_t segment, std::uint64_t slot_bytes);
  // Unlinks the files past the capacity, which may have been lowered. Errors: io.
  Result<void> remove_past_capacity();

  // 0: there is no such segment.
  std::uint64_t slot_bytes_of(std::uint32_t segment) const noexcept;
  bool holds(DiskLocation at, std::uint64_t record_bytes) const noexcept;
  std::vector<std::uint32_t> present() const;
  std::filesystem::path path_of(std::uint32_t segment) const;
  // Of the files made or found; any thread.
  std::uint64_t file_bytes() const noexcept { return files_ * segment_bytes_; }

 private:
  Result<void> note_file(const std::filesystem::path& path);
  Result<void> write_header(int fd, std::uint32_t segment, std::uint64_t slot_bytes) const;
  Result<void> sync_directory() const;

  std::filesystem::path directory_;
  StoreId store_;
  std::uint64_t segment_bytes_;
  std::uint32_t segments_max_;
  std::vector<std::uint64_t> slot_bytes_;  // by segment
  std::vector<std::filesystem::path> past_capacity_;
  std::atomic<std::uint64_t> files_ = 0;
};

}  // namespace kvtier::storage
