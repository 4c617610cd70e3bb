#include "storage/store/thread/reads.h"

#include <cstring>

#include "storage/index/record_checks.h"

namespace kvtier::storage {

Reads::Reads(StoreShared& shared, Availability& availability, RingExtents& extents,
             SegmentFiles& files, Workers& workers)
    : shared_(shared),
      availability_(availability),
      extents_(extents),
      files_(files),
      workers_(workers),
      look_memory_(shared, extents.numbers(), OwnMemory::Of::second_looks) {}

void Reads::take(ReadCommand&& command) {
  const bool known = extents_.hold(command.read.extent);
  if (known && availability_.readable()) {
    queued_.push_back(std::move(command));
  } else {
    finish(command, known ? availability_.offline() : not_registered(command.read.extent));
  }
}

void Reads::start() {
  start_second_looks();
  while (!queued_.empty() && in_flight_.size() < shared_.options.reads_in_flight_max) {
    ReadCommand command = std::move(queued_.front());
    queued_.pop_front();
    auto transfer = prepare(command.read);
    submit(std::move(command), std::move(transfer));
  }
}

void Reads::start_second_looks() {
  while (!looks_queued_.empty() && look_memory_.has_room(looks_queued_.front().read.record_bytes)) {
    ReadCommand command = std::move(looks_queued_.front());
    looks_queued_.pop_front();
    auto transfer = prepare_second_look(command);
    submit(std::move(command), std::move(transfer));
  }
}

void Reads::submit(ReadCommand command, Result<BlockDevice::Transfer> transfer) {
  if (!transfer) return finish(command, transfer.error());
  transfer->tag = shared_.new_tag();
  transfer->priority = BlockDevice::Priority::read;
  shared_.device.read(*transfer);
  in_flight_.emplace(transfer->tag, std::move(command));
}

Result<BlockDevice::Transfer> Reads::prepare(const RecordStore::Read& read) {
  auto transfer =
      extents_.transfer(read.extent, read.slot, read.record_bytes, read.from, read.slot_bytes);
  if (!transfer) return transfer;
  const auto there = files_.open_to_read(read.from, read.slot_bytes);
  return there ? transfer : there.error();
}

Result<BlockDevice::Transfer> Reads::prepare_second_look(ReadCommand& command) {
  const RecordStore::Read& read = command.read;
  auto transfer = look_memory_.read_from(files_, read.from, read.slot_bytes, read.record_bytes);
  if (transfer) command.look_part = look_memory_.part_at(transfer->memory);
  return transfer;
}

std::optional<DiskLocation> Reads::land(const BlockDevice::Completion& completion) {
  auto read = in_flight_.extract(completion.tag);
  if (read.empty()) return std::nullopt;
  const DiskLocation at = read.mapped().read.from;
  landed_.emplace_back(std::move(read.mapped()), completion.result);
  return at;
}

void Reads::end_landed() {
  for (auto& [command, result] : landed_) end(command, result);
  landed_.clear();
}

// At a second look what holds is copied to where it was wanted.
void Reads::end(ReadCommand& command, const Result<void>& transferred) {
  if (!transferred || !availability_.readable())
    return finish(command, availability_.or_unreadable(transferred));
  const RecordStore::Read read = command.read;
  const auto slot = extents_.record(read.extent, read.slot, read.record_bytes);
  const auto record =
      command.look_part ? look_memory_.part(*command.look_part).first(read.record_bytes) : slot;
  const auto verify = [record, slot, read]() -> Result<void> {
    auto intact = verify_record(record, read.ns, read.key, read.from);
    if (intact && record.data() != slot.data())
      std::memcpy(slot.data(), record.data(), record.size());
    return intact;
  };
  if (record.size() <= kChecksumInlineBytesMax) return judge(command, verify());
  const std::uint64_t tag = shared_.new_tag();
  verifying_.emplace(tag, std::move(command));
  workers_.submit([&inbox = shared_.inbox, tag, verify] {
    inbox.send(ChecksumCommand{tag, verify()});
  });
}

bool Reads::verified(const ChecksumCommand& command) {
  auto read = verifying_.extract(command.tag);
  if (read.empty()) return false;
  judge(read.mapped(), command.result);
  return true;
}

// What does not hold in memory that clients write to need not be the disk's fault: that is for a
// second look to say, into memory that they cannot reach.
void Reads::judge(ReadCommand& command, Result<void> intact) {
  if (!intact && !command.look_part) {
    if (!availability_.readable()) return finish(command, availability_.offline());
    looks_queued_.push_back(std::move(command));
    return;
  }
  if (intact) {
    ++shared_.counters.records_read;
    shared_.counters.bytes_read += command.read.record_bytes;
    if (command.look_part) extents_.note_memory_fault(command.read.extent);
  } else {
    ++shared_.counters.checksum_failures;
  }
  finish(command, std::move(intact));
}

void Reads::fail_queued(const Result<void>& failed) {
  for (auto& command : std::exchange(queued_, {})) finish(command, failed);
  for (auto& command : std::exchange(looks_queued_, {})) finish(command, failed);
}

void Reads::finish(ReadCommand& command, Result<void> result) {
  if (!result) ++shared_.counters.read_failures;
  --shared_.counters.reads_pending;
  if (command.look_part) look_memory_.give_back(*command.look_part);
  const ExtentId extent = command.read.extent;
  shared_.finished.add(command.done, std::move(result));
  extents_.release(extent);
}

}  // namespace kvtier::storage
