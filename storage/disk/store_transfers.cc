// Reads and writes of the store's thread: where their bytes are, and what must hold before and
// after.
#include <algorithm>
#include <cstring>
#include <string>

#include "client/base/check.h"
#include "storage/disk/store_loop.h"

namespace kvtier::storage {
namespace {

constexpr std::uint64_t kRecordsBetweenSizeChecks = 256;

std::string place(DiskLocation at) {
  return "slot " + std::to_string(at.slot) + " of segment " + std::to_string(at.segment);
}

RecordHeader header_of(std::span<const std::byte> record) noexcept {
  RecordHeader header;
  std::memcpy(&header, record.data(), sizeof header);
  return header;
}

// Whether a record about to be written is the one its identity says.
Result<void> check_identity(std::span<const std::byte> record, const BlockIdentity& identity) {
  const RecordHeader header = header_of(record);
  if (header.magic == kRecordMagic && header.version == kRecordVersion &&
      header.record_bytes == record.size() && header.ns == identity.ns &&
      header.key == identity.key && header.parent == identity.parent &&
      header.block_index == identity.block_index) {
    return {};
  }
  return make_error(Errc::corrupt, "a record to be written is not the block it is named as");
}

Error erased() {
  return make_error(Errc::not_found, "the record was erased while it was written");
}

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

// While reads wait, a request does: writes then keep to a quarter of their share.
void StoreLoop::start_writes() {
  const std::size_t at_most =
      reads_queued_.empty() ? options_.writes_in_flight_max : options_.writes_in_flight_max / 4 + 1;
  while (!writes_queued_.empty() && writes_.size() < at_most) {
    WriteCommand command = std::move(writes_queued_.front());
    writes_queued_.pop_front();
    auto transfer = command.erased_by.empty() ? prepare_write(command.write)
                                              : Result<BlockDevice::Transfer>(erased());
    if (!transfer) {
      finish_write(command, transfer.error());
      continue;
    }
    transfer->tag = next_tag_++;
    device_.write(*transfer);
    device_.submit();
    writes_.emplace(transfer->tag, std::move(command));
  }
}

Result<BlockDevice::Transfer> StoreLoop::transfer_of(ExtentId extent, std::uint32_t slot,
                                                     std::uint64_t record_bytes, DiskLocation at,
                                                     std::uint64_t slot_bytes) const {
  const ExtentState& state = extents_.at(extent);
  const std::uint64_t begin = slot * state.slot_bytes;
  if (record_bytes == 0 || record_bytes % kRecordAlignment != 0 ||
      record_bytes > state.slot_bytes || begin + record_bytes > state.memory.size() ||
      record_bytes > slot_bytes ||
      at.slot >= slots_per_segment(options_.segment_bytes, slot_bytes)) {
    return make_error(Errc::invalid, "a record of " + std::to_string(record_bytes) +
                                         " bytes does not fit " + place(at) +
                                         " or its extent's slot");
  }
  BlockDevice::Transfer transfer;
  transfer.file = FileId(at.segment);
  transfer.offset = slot_offset(at.slot, slot_bytes);
  transfer.buffer = state.buffer;
  transfer.memory = state.memory.data() + begin;
  transfer.bytes = static_cast<std::uint32_t>(record_bytes);
  return transfer;
}

Result<BlockDevice::Transfer> StoreLoop::prepare_read(const RecordStore::Read& read) {
  auto transfer =
      transfer_of(read.extent, read.slot, read.record_bytes, read.from, read.slot_bytes);
  if (!transfer) return transfer;
  if (segments_.slot_bytes_of(read.from.segment) != read.slot_bytes) {
    return make_error(Errc::corrupt, "segment " + std::to_string(read.from.segment) +
                                         " has no slots of " + std::to_string(read.slot_bytes) +
                                         " bytes");
  }
  if (const auto open = open_segment(read.from.segment); !open) return open.error();
  return transfer;
}

Result<BlockDevice::Transfer> StoreLoop::prepare_write(const RecordStore::Write& write) {
  auto transfer =
      transfer_of(write.extent, write.slot, write.record_bytes, write.to, write.slot_bytes);
  if (!transfer) return transfer;
  if (!index_has_room()) {
    return make_error(Errc::no_space, "the index of the disk tier has filled its share");
  }
  const auto record = record_at(write.extent, write.slot, write.record_bytes);
  if (const auto named = check_identity(record, write.identity); !named) return named.error();
  if (const auto sealed = seal_checksums(record); !sealed) return sealed.error();
  if (const auto erased = erase_replaced(write); !erased) return erased.error();
  if (const auto made = segments_.prepare(write.to.segment, write.slot_bytes); !made) {
    return made.error();
  }
  if (const auto open = open_segment(write.to.segment); !open) return open.error();
  return transfer;
}

Result<void> StoreLoop::open_segment(std::uint32_t segment) {
  if (device_.is_open(FileId(segment))) return {};
  return device_.open_file(FileId(segment), segments_.path_of(segment));
}

// Committed before the write is started: from then on nothing points to what is being overwritten.
Result<void> StoreLoop::erase_replaced(const RecordStore::Write& write) {
  if (!write.replaces) return {};
  const auto at = index_.find(*write.replaces);
  if (!at) return at.error();
  if (*at != write.to) return {};
  Index::Batch batch;
  batch.erase(*write.replaces);
  return index_.commit(batch);
}

bool StoreLoop::index_has_room() {
  if (records_until_size_check_ == 0) {
    records_until_size_check_ = kRecordsBetweenSizeChecks;
    index_full_ = index_.file_bytes() > options_.capacity_bytes - segment_capacity_bytes(options_);
  }
  --records_until_size_check_;
  return !index_full_;
}

std::span<std::byte> StoreLoop::record_at(ExtentId extent, std::uint32_t slot,
                                          std::uint64_t bytes) const {
  const ExtentState& state = extents_.at(extent);
  return state.memory.subspan(slot * state.slot_bytes, bytes);
}

void StoreLoop::end_read(ReadCommand& command, const Result<void>& transferred) {
  if (!transferred) {
    finish_read(command, transferred);
    return;
  }
  const RecordStore::Read& read = command.read;
  const auto record = record_at(read.extent, read.slot, read.record_bytes);
  auto intact = verify_checksums(record, read.ns, read.key);
  if (intact && header_of(record).record_bytes != read.record_bytes) {
    intact = make_error(Errc::corrupt, "record: another size");
  }
  if (!intact) {
    ++counters_.checksum_failures;
    intact = make_error(intact.error().code, place(read.from) + ": " + intact.error().message);
  } else {
    ++counters_.records_read;
    counters_.bytes_read += read.record_bytes;
  }
  finish_read(command, std::move(intact));
}

void StoreLoop::end_write(WriteCommand& command, const Result<void>& transferred) {
  if (!transferred || !command.erased_by.empty()) {
    finish_write(command, transferred ? Result<void>(erased()) : transferred);
    return;
  }
  const RecordStore::Write& write = command.write;
  files_written_.insert(write.to.segment);
  DiskEntry entry;
  entry.identity = write.identity;
  entry.at = write.to;
  entry.record_bytes = write.record_bytes;
  entry.last_access = write.last_access;
  batch_.put(entry);
  on_commit_.push_back([this, command = std::move(command)](const Result<void>& indexed) mutable {
    if (indexed) {
      ++counters_.records_written;
      counters_.bytes_written += command.write.record_bytes;
    }
    finish_write(command, indexed);
  });
}

void StoreLoop::finish_read(ReadCommand& command, Result<void> result) {
  if (!result) ++counters_.read_failures;
  --counters_.reads_pending;
  const ExtentId extent = command.read.extent;
  finish(command.done, std::move(result));
  release(extent);
}

void StoreLoop::finish_write(WriteCommand& command, Result<void> result) {
  if (!result) ++counters_.write_failures;
  --counters_.writes_pending;
  const auto key = keys_being_written_.find(command.write.identity.key);
  KVTIER_CHECK(key != keys_being_written_.end());
  if (--key->second == 0) keys_being_written_.erase(key);
  end_before_flush(command.flushes_before);
  for (const auto& erase : command.erased_by) end_part(*erase);
  const ExtentId extent = command.write.extent;
  finish(command.done, std::move(result));
  release(extent);
}

}  // namespace kvtier::storage
