// The segment files, `segments/NNNNNN.seg`: [header page][slot 0][slot 1]... Every file, its header
// included, is `segment_bytes` long and allocated when it is made (docs/format.md).
//
// Only the thread that owns the store's directory at the time calls anything here: the opener
// first, then the store's thread. The next file is made ahead of its need on a thread of its own.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <vector>

#include "core/base/units.h"
#include "core/record/record.h"
#include "kvtier/result.h"
#include "storage/index/store_options.h"

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

// What a file system allocates beside a segment's own bytes: its tree of extents, at worst one for
// every second page (12 bytes each), and its name.
constexpr std::uint64_t segment_overhead_bytes(std::uint64_t segment_bytes) noexcept {
  return round_up(segment_bytes / 512, kRecordAlignment) + 2 * kRecordAlignment;
}

constexpr std::uint64_t slot_offset(std::uint32_t slot, std::uint64_t slot_bytes) noexcept {
  return kSegmentHeaderBytes + slot * slot_bytes;
}

constexpr BadPlace place_of(DiskLocation at, std::uint64_t slot_bytes) noexcept {
  return {at.segment, slot_offset(at.slot, slot_bytes), slot_bytes};
}

class Segments {
 public:
  Segments(std::filesystem::path directory, StoreId store, std::uint64_t segment_bytes,
           std::uint32_t segments_max);
  ~Segments();

  // Reads the header of every file there is. A file that is not a segment of this store is left
  // alone, and made anew when its place is needed. Errors: io.
  Result<void> load();

  // Makes the segment or gives it to another slot size; nothing in it may be in use. Errors: io,
  // no_space, invalid (past the capacity).
  Result<void> prepare(std::uint32_t segment, std::uint64_t slot_bytes);
  // Begins to make the next file that is missing, so that prepare() finds it. One that could not be
  // made is made by prepare(): what failed ahead says nothing of the day it is needed.
  void make_one_ahead();
  // After the store was offline: forgets the segments whose files are not what they were. Errors:
  // io.
  Result<void> look_again();
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
  Result<void> wait_for_file(std::uint32_t segment);
  // Waits for the file that is made ahead, of which there is one. Whether it came to be.
  bool take_ahead();
  Result<void> allocate(std::uint32_t segment) const;
  Result<void> write_header(int fd, std::uint32_t segment, std::uint64_t slot_bytes) const;
  Result<void> sync_directory() const;

  std::filesystem::path directory_;
  StoreId store_;
  std::uint64_t segment_bytes_;
  std::uint32_t segments_max_;
  std::vector<std::uint64_t> slot_bytes_;  // by segment
  // Whole: all its bytes are allocated; a header it may lack. Damaged: anything else, and counted.
  enum class File : std::uint8_t { absent, damaged, whole };
  void set_file(std::uint32_t segment, File state);
  std::vector<File> file_;  // by segment
  std::vector<std::filesystem::path> past_capacity_;
  struct Ahead {
    std::uint32_t segment = 0;
    std::future<Result<void>> made;
  };
  std::optional<Ahead> ahead_;
  std::atomic<std::uint64_t> files_ = 0;
};

}  // namespace kvtier::storage
