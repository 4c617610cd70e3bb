// Reads and scrubs of the store's thread.
#include "storage/disk/points.h"
#include "storage/disk/record_checks.h"
#include "storage/disk/store_loop.h"

namespace kvtier::storage {
namespace {

// A scrub that waited so long behind busy queues goes all the same, one at a time.
constexpr std::chrono::seconds kScrubPatience{1};

}  // namespace

void StoreLoop::start_reads() {
  while (!reads_queued_.empty() && reads_.size() < options_.reads_in_flight_max) {
    ReadCommand command = std::move(reads_queued_.front());
    reads_queued_.pop_front();
    auto transfer = prepare_read(command.read);
    if (!transfer) {
      finish_read(command, transfer.error());
      continue;
    }
    transfer->tag = next_tag_++;
    device_.read(*transfer);
    reads_.emplace(transfer->tag, std::move(command));
  }
}

Result<void> StoreLoop::check_segment(DiskLocation at, std::uint64_t slot_bytes) {
  if (segments_.slot_bytes_of(at.segment) == slot_bytes) return open_segment(at.segment);
  return make_error(Errc::corrupt, "segment " + std::to_string(at.segment) + " has no slots of " +
                                       std::to_string(slot_bytes) + " bytes");
}

Result<BlockDevice::Transfer> StoreLoop::prepare_read(const RecordStore::Read& read) {
  auto transfer =
      transfer_of(read.extent, read.slot, read.record_bytes, read.from, read.slot_bytes);
  if (!transfer) return transfer;
  if (const auto there = check_segment(read.from, read.slot_bytes); !there) return there.error();
  transfer->priority = BlockDevice::Priority::read;
  return transfer;
}

bool StoreLoop::may_scrub() const {
  if (scrubs_queued_.empty() ||
      !scrub_memory_.has_room(scrubs_queued_.front().scrub.record_bytes)) {
    return false;
  }
  if (reads_queued_.empty() && writes_queued_.empty() && writes_sealed_.empty() &&
      writes_cleared_.empty()) {
    return true;
  }
  return scrubs_.empty() && Health::Clock::now() - scrubs_queued_.front().since >= kScrubPatience;
}

void StoreLoop::start_scrubs() {
  while (may_scrub()) {
    ScrubCommand command = std::move(scrubs_queued_.front());
    scrubs_queued_.pop_front();
    auto transfer = prepare_scrub(command);
    if (!transfer) {
      finish_scrub(command, transfer.error());
      continue;
    }
    transfer->tag = next_tag_++;
    device_.read(*transfer);
    scrubs_.emplace(transfer->tag, std::move(command));
    KVTIER_STORAGE_POINT("storage.scrub.submitted");
  }
}

Result<BlockDevice::Transfer> StoreLoop::prepare_scrub(ScrubCommand& command) {
  const RecordStore::Scrub& scrub = command.scrub;
  if (!fits_slot(scrub.record_bytes, scrub.from, scrub.slot_bytes, options_.segment_bytes)) {
    return does_not_fit(scrub.record_bytes, scrub.from);
  }
  if (const auto there = check_segment(scrub.from, scrub.slot_bytes); !there) return there.error();
  // A number of its own, the last one: extents take theirs from the first on.
  const BufferId buffer(device_.limits().buffers - 1);
  if (!scrub_memory_.buffer() && !buffers_used_.insert(buffer.value).second) {
    return make_error(Errc::no_space, "too many extents are registered to scrub");
  }
  const auto part = scrub_memory_.take(device_, buffer, scrub.record_bytes);
  if (!scrub_memory_.buffer()) buffers_used_.erase(buffer.value);
  if (!part) return part.error();
  command.part = *part;
  BlockDevice::Transfer transfer;
  transfer.file = FileId(scrub.from.segment);
  transfer.offset = slot_offset(scrub.from.slot, scrub.slot_bytes);
  transfer.buffer = *scrub_memory_.buffer();
  transfer.memory = scrub_memory_.part(*part).data();
  transfer.bytes = static_cast<std::uint32_t>(scrub.record_bytes);
  transfer.priority = BlockDevice::Priority::scrub;
  return transfer;
}

void StoreLoop::end_read(ReadCommand& command, const Result<void>& transferred) {
  if (!transferred || !health_.online()) {
    finish_read(command, health_.online() ? transferred : Result<void>(offline()));
    return;
  }
  const RecordStore::Read read = command.read;
  const auto record = record_at(read.extent, read.slot, read.record_bytes);
  if (record.size() <= kChecksumInlineBytesMax) {
    read_verified(command, verify_record(record, read.ns, read.key, read.from));
    return;
  }
  const std::uint64_t tag = next_tag_++;
  reads_verifying_.emplace(tag, std::move(command));
  workers_.submit([this, tag, record, read] {
    send(ChecksumCommand{tag, verify_record(record, read.ns, read.key, read.from)});
  });
}

void StoreLoop::read_verified(ReadCommand& command, Result<void> intact) {
  if (intact) {
    ++counters_.records_read;
    counters_.bytes_read += command.read.record_bytes;
  } else {
    ++counters_.checksum_failures;
  }
  finish_read(command, std::move(intact));
}

void StoreLoop::end_scrub(ScrubCommand& command, const Result<void>& transferred) {
  if (!transferred || !health_.online()) {
    scrub_memory_.give_back(command.part);
    finish_scrub(command, health_.online() ? transferred : Result<void>(offline()));
    return;
  }
  const RecordStore::Scrub scrub = command.scrub;
  const auto record = scrub_memory_.part(command.part).first(scrub.record_bytes);
  const std::uint64_t tag = next_tag_++;
  scrubs_verifying_.emplace(tag, std::move(command));
  workers_.submit([this, tag, record, scrub] {
    send(ChecksumCommand{tag, verify_record(record, scrub.ns, scrub.key, scrub.from)});
  });
}

void StoreLoop::scrub_verified(ScrubCommand& command, Result<void> intact) {
  if (!intact) ++counters_.checksum_failures;
  scrub_memory_.give_back(command.part);
  finish_scrub(command, std::move(intact));
}

void StoreLoop::finish_read(ReadCommand& command, Result<void> result) {
  if (!result) ++counters_.read_failures;
  --counters_.reads_pending;
  const ExtentId extent = command.read.extent;
  finish(command.done, std::move(result));
  release(extent);
}

void StoreLoop::finish_scrub(ScrubCommand& command, Result<void> result) {
  --counters_.scrubs_pending;
  finish(command.done, std::move(result));
}

}  // namespace kvtier::storage
