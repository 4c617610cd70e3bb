#include "storage/store/thread/segment_files.h"

#include <spdlog/spdlog.h>

#include <cerrno>
#include <string>
#include <utility>

namespace kvtier::storage {

Result<void> SegmentFiles::open(std::uint32_t segment) {
  if (shared_.device.is_open(FileId(segment))) return {};
  auto opened = shared_.device.open_file(FileId(segment), segments_.path_of(segment));
  if (!opened && opened.error().code == Errc::no_space) {
    // No descriptor is left, which is no fault of the disk's: those of other segments are given up.
    close_all();
    opened = shared_.device.open_file(FileId(segment), segments_.path_of(segment));
    if (!opened && opened.error().code == Errc::no_space) {
      if (!std::exchange(told_of_descriptors_, true)) spdlog::error("{}", opened.error().message);
      return make_error(Errc::unavailable, opened.error().message);
    }
  }
  if (opened) {
    open_.insert(segment);
    return {};
  }
  availability_.go_offline(opened.error().message,
                           opened.error().code == Errc::not_found ? ENOENT : 0);
  return availability_.offline();
}

Result<void> SegmentFiles::open_to_read(DiskLocation at, std::uint64_t slot_bytes) {
  if (segments_.slot_bytes_of(at.segment) == slot_bytes) return open(at.segment);
  return make_error(Errc::corrupt, "segment " + std::to_string(at.segment) + " has no slots of " +
                                       std::to_string(slot_bytes) + " bytes");
}

Result<void> SegmentFiles::open_to_write(DiskLocation to, std::uint64_t slot_bytes) {
  const bool is_new = segments_.slot_bytes_of(to.segment) == 0;
  if (const auto made = segments_.prepare(to.segment, slot_bytes); !made) {
    const bool out_of_space = made.error().code == Errc::no_space;
    if (made.error().code != Errc::invalid) {
      availability_.go_read_only(made.error().message, out_of_space ? ENOSPC : 0);
    }
    return made.error();
  }
  if (is_new) segments_.make_one_ahead();
  return open(to.segment);
}

std::vector<std::uint32_t> SegmentFiles::take_unsynced() {
  std::vector<std::uint32_t> files(unsynced_.begin(), unsynced_.end());
  unsynced_.clear();
  return files;
}

Result<void> SegmentFiles::look_again() {
  if (const auto seen = segments_.look_again(); !seen) return seen;
  std::erase_if(unsynced_,
                [this](std::uint32_t segment) { return segments_.slot_bytes_of(segment) == 0; });
  return {};
}

void SegmentFiles::close_all() {
  for (const std::uint32_t segment : std::exchange(open_, {})) {
    shared_.device.close_file(FileId(segment));
  }
}

}  // namespace kvtier::storage
