// Reads and scrubs of the store's thread.
#include <spdlog/spdlog.h>

#include <cstring>
#include <utility>

#include "storage/index/points.h"
#include "storage/index/record_checks.h"
#include "storage/store/store_loop.h"

namespace kvtier::storage {
namespace {

// A scrub that waited so long behind busy queues goes all the same, one at a time.
constexpr std::chrono::seconds kScrubPatience{1};

}  // namespace

void StoreLoop::start_reads() {
  start_second_looks();
  while (!reads_queued_.empty() && reads_.size() < options_.reads_in_flight_max) {
    ReadCommand command = std::move(reads_queued_.front());
    reads_queued_.pop_front();
    auto transfer = prepare_read(command.read);
    submit_read(std::move(command), std::move(transfer));
  }
}

void StoreLoop::submit_read(ReadCommand command, Result<BlockDevice::Transfer> transfer) {
  if (!transfer) return finish_read(command, transfer.error());
  transfer->tag = next_tag_++;
  device_.read(*transfer);
  reads_.emplace(transfer->tag, std::move(command));
}

// Before other reads: whoever waits for them has waited for one read already.
void StoreLoop::start_second_looks() {
  while (!looks_queued_.empty() && look_memory_.has_room(looks_queued_.front().read.record_bytes)) {
    ReadCommand command = std::move(looks_queued_.front());
    looks_queued_.pop_front();
    auto transfer = prepare_second_look(command);
    submit_read(std::move(command), std::move(transfer));
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

// Buffers of numbers of their own, the last ones: extents take theirs from the first on.
Result<BlockDevice::Transfer> StoreLoop::prepare_second_look(ReadCommand& command) {
  const RecordStore::Read& read = command.read;
  auto transfer = to_own_memory(look_memory_, BufferId(device_.limits().buffers - 2), read.from,
                                read.slot_bytes, read.record_bytes);
  if (!transfer) return transfer;
  command.look_part = look_memory_.part_at(transfer->memory);
  transfer->priority = BlockDevice::Priority::read;
  return transfer;
}

Result<BlockDevice::Transfer> StoreLoop::prepare_scrub(ScrubCommand& command) {
  const RecordStore::Scrub& scrub = command.scrub;
  auto transfer = to_own_memory(scrub_memory_, BufferId(device_.limits().buffers - 1), scrub.from,
                                scrub.slot_bytes, scrub.record_bytes);
  if (!transfer) return transfer;
  command.part = scrub_memory_.part_at(transfer->memory);
  transfer->priority = BlockDevice::Priority::scrub;
  return transfer;
}

Result<BlockDevice::Transfer> StoreLoop::to_own_memory(OwnMemory& memory, BufferId buffer,
                                                       DiskLocation from, std::uint64_t slot_bytes,
                                                       std::uint64_t record_bytes) {
  if (!fits_slot(record_bytes, from, slot_bytes, options_.segment_bytes))
    return does_not_fit(record_bytes, from);
  if (const auto there = check_segment(from, slot_bytes); !there) return there.error();
  if (!memory.buffer() && !buffers_used_.insert(buffer.value).second)
    return make_error(Errc::no_space, "too many extents are registered");
  const auto part = memory.take(device_, buffer, record_bytes);
  if (!memory.buffer()) buffers_used_.erase(buffer.value);
  if (!part) return part.error();
  BlockDevice::Transfer transfer;
  transfer.file = FileId(from.segment);
  transfer.offset = slot_offset(from.slot, slot_bytes);
  transfer.buffer = *memory.buffer();
  transfer.memory = memory.part(*part).data();
  transfer.bytes = static_cast<std::uint32_t>(record_bytes);
  return transfer;
}

// At a second look what holds is copied to where it was wanted.
void StoreLoop::end_read(ReadCommand& command, const Result<void>& transferred) {
  if (!transferred || !health_.online()) {
    finish_read(command, health_.online() ? transferred : Result<void>(offline()));
    return;
  }
  const RecordStore::Read read = command.read;
  const auto slot = record_at(read.extent, read.slot, read.record_bytes);
  const auto record =
      command.look_part ? look_memory_.part(*command.look_part).first(read.record_bytes) : slot;
  const auto verify = [record, slot, read]() -> Result<void> {
    auto intact = verify_record(record, read.ns, read.key, read.from);
    if (intact && record.data() != slot.data())
      std::memcpy(slot.data(), record.data(), record.size());
    return intact;
  };
  if (record.size() <= kChecksumInlineBytesMax) {
    read_verified(command, verify());
    return;
  }
  const std::uint64_t tag = next_tag_++;
  reads_verifying_.emplace(tag, std::move(command));
  workers_.submit([this, tag, verify] { send(ChecksumCommand{tag, verify()}); });
}

// What does not hold in memory that clients write to need not be the disk's fault: that is for a
// second look to say, into memory that they cannot reach.
void StoreLoop::read_verified(ReadCommand& command, Result<void> intact) {
  if (!intact && !command.look_part) {
    if (!health_.online()) return finish_read(command, offline());
    looks_queued_.push_back(std::move(command));
    return;
  }
  if (intact) {
    ++counters_.records_read;
    counters_.bytes_read += command.read.record_bytes;
    if (command.look_part) note_memory_fault(command.read.extent);
  } else {
    ++counters_.checksum_failures;
  }
  finish_read(command, std::move(intact));
}

// A client has written to the slot, or has taken pages out of the extent, which are then new ones
// for all who map it: the old ones, if the kernel holds them for the device, are read by nobody. So
// it holds them no more.
void StoreLoop::note_memory_fault(ExtentId extent) {
  ++counters_.memory_faults;
  ExtentState& state = extents_.at(extent);
  if (std::exchange(state.at_fault, true)) return;
  device_.unpin_buffer(state.buffer);
  spdlog::warn(
      "extent {}: a record that holds on disk did not where it had been read to: a client writes "
      "where it has no slot, or takes pages away; disk I/O there is slower from now on",
      extent.value);
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
  if (command.look_part) look_memory_.give_back(*command.look_part);
  const ExtentId extent = command.read.extent;
  finish(command.done, std::move(result));
  release(extent);
}

void StoreLoop::finish_scrub(ScrubCommand& command, Result<void> result) {
  --counters_.scrubs_pending;
  finish(command.done, std::move(result));
}

}  // namespace kvtier::storage
