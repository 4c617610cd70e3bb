// The segments' files as the device has them: which are open, and which were written to and not
// synced since.
//
// Owned by the loop, on the store's thread. It holds:
// - A file is opened when it is first needed, and all are closed before the store comes back from
//   offline: they may be files of a device that is gone for good.
// - A file that was written to is unsynced until a flush takes it, and again if its sync fails.
// A file that cannot be opened takes the store offline, a segment that cannot be made leaves it
// read-only; for want of descriptors other files are closed, and if that does not help the transfer
// alone fails.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "storage/index/segments.h"
#include "storage/store/thread/availability.h"

namespace kvtier::storage {

class SegmentFiles {
 public:
  SegmentFiles(StoreShared& shared, Availability& availability, Segments& segments)
      : shared_(shared), availability_(availability), segments_(segments) {}

  // Errors: unavailable (it is offline now, or there are too few descriptors).
  Result<void> open(std::uint32_t segment);
  // Errors: corrupt (no slots of that size there), unavailable.
  Result<void> open_to_read(DiskLocation at, std::uint64_t slot_bytes);
  // Makes the segment, or gives it to another slot size, where it has to. Errors: io, no_space,
  // invalid, unavailable.
  Result<void> open_to_write(DiskLocation to, std::uint64_t slot_bytes);

  void note_written(std::uint32_t segment) { unsynced_.insert(segment); }
  // For a flush, which syncs them; those that it cannot it notes as written again.
  std::vector<std::uint32_t> take_unsynced();

  // On the way back from offline. Errors: io.
  Result<void> look_again();
  void close_all();

 private:
  StoreShared& shared_;
  Availability& availability_;
  Segments& segments_;
  std::set<std::uint32_t> open_;
  bool told_of_descriptors_ = false;
  std::set<std::uint32_t> unsynced_;
};

}  // namespace kvtier::storage
