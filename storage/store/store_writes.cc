// Writes of the store's thread: sealed ahead of their turn, written, indexed.
#include <algorithm>
#include <string>

#include "core/base/check.h"
#include "storage/index/points.h"
#include "storage/index/record_checks.h"
#include "storage/store/store_loop.h"

namespace kvtier::storage {

// As many as can be in flight, so that each completion finds the next one ready.
void StoreLoop::seal_ahead() {
  while (!writes_queued_.empty() &&
         writes_sealing_.size() + writes_sealed_.size() + writes_cleared_.size() <
             options_.writes_in_flight_max) {
    WriteCommand command = std::move(writes_queued_.front());
    writes_queued_.pop_front();
    const RecordStore::Write& write = command.write;
    const auto fits =
        transfer_of(write.extent, write.slot, write.record_bytes, write.to, write.slot_bytes);
    if (!fits) {
      finish_write(command, fits.error());
      continue;
    }
    const auto record = record_at(write.extent, write.slot, write.record_bytes);
    if (record.size() <= kChecksumInlineBytesMax) {
      sealed(command, seal_record(record, write.identity));
    } else {
      const std::uint64_t tag = next_tag_++;
      const BlockIdentity identity = write.identity;
      writes_sealing_.emplace(tag, std::move(command));
      workers_.submit([this, tag, record, identity] {
        send(ChecksumCommand{tag, seal_record(record, identity)});
      });
    }
  }
}

void StoreLoop::sealed(WriteCommand& command, const Result<void>& result) {
  KVTIER_STORAGE_POINT("storage.write.sealed");
  const Result<void> closing = make_error(Errc::unavailable, "the record store is closing");
  if (!result || !health_.online() || closing_) {
    finish_write(command, !result ? result : closing_ ? closing : Result<void>(offline()));
  } else {
    writes_sealed_.push_back(std::move(command));
  }
}

// Also ahead of their turn: a place in the device's queue is filled as soon as it is free.
void StoreLoop::clear_places() {
  if (writes_sealed_.empty()) return;
  auto commands = std::exchange(writes_sealed_, {});
  const auto erased = erase_replaced(commands);
  for (WriteCommand& command : commands) {
    if (erased) {
      writes_cleared_.push_back(std::move(command));
    } else {
      finish_write(command, erased);
    }
  }
}

// While reads wait, a request does: writes then keep to a quarter of their share.
void StoreLoop::start_writes() {
  if (writes_cleared_.empty()) clear_places();
  const std::size_t at_most =
      reads_queued_.empty() ? options_.writes_in_flight_max : options_.writes_in_flight_max / 4 + 1;
  std::vector<WriteCommand> starting;
  while (!writes_cleared_.empty() && writes_.size() + starting.size() < at_most) {
    WriteCommand command = std::move(writes_cleared_.front());
    writes_cleared_.pop_front();
    if (command.erased_by.empty()) {
      starting.push_back(std::move(command));
    } else {
      finish_write(command, erased_meanwhile());
    }
  }
  if (starting.empty()) return;
  for (WriteCommand& command : starting) {
    auto transfer = prepare_write(command.write);
    if (!transfer) {
      finish_write(command, health_.online() ? transfer.error() : offline());
      continue;
    }
    transfer->tag = next_tag_++;
    KVTIER_STORAGE_POINT("storage.write.before_submit");
    device_.write(*transfer);
    writes_.emplace(transfer->tag, std::move(command));
  }
  device_.submit();
  KVTIER_STORAGE_POINT("storage.write.submitted");
}

// Committed before the writes are started: from then on nothing points to what is being
// overwritten.
Result<void> StoreLoop::erase_replaced(const std::deque<WriteCommand>& commands) {
  Index::Batch batch;
  std::vector<Key> keys;
  for (const WriteCommand& command : commands) {
    const RecordStore::Write& write = command.write;
    if (!write.replaces) continue;
    const auto at = index_.find(*write.replaces);
    if (!at) {
      index_failed(at.error());
      return offline();
    }
    if (*at != write.to) continue;
    batch.erase(*write.replaces);
    keys.push_back(*write.replaces);
  }
  if (keys.empty()) return {};
  KVTIER_STORAGE_POINT("storage.write.before_replaced_erase");
  if (const auto erased = index_.commit(batch); !erased) {
    keys_to_erase_.insert(keys_to_erase_.end(), keys.begin(), keys.end());
    index_failed(erased.error());
    return offline();
  }
  KVTIER_STORAGE_POINT("storage.write.after_replaced_erase");
  return {};
}

Result<BlockDevice::Transfer> StoreLoop::prepare_write(const RecordStore::Write& write) {
  if (!health_.online()) return offline();
  if (!index_.has_room()) {
    return make_error(Errc::no_space, "the index of the disk tier has filled its share");
  }
  const bool is_new = segments_.slot_bytes_of(write.to.segment) == 0;
  if (const auto made = segments_.prepare(write.to.segment, write.slot_bytes); !made) {
    const bool out_of_space = made.error().code == Errc::no_space;
    if (made.error().code != Errc::invalid) {
      go_offline(made.error().message, out_of_space ? ENOSPC : 0);
    }
    return made.error();
  }
  if (is_new) segments_.make_one_ahead();
  if (const auto open = open_segment(write.to.segment); !open) return open.error();
  auto transfer =
      transfer_of(write.extent, write.slot, write.record_bytes, write.to, write.slot_bytes);
  if (transfer) {
    transfer->priority = BlockDevice::Priority::write;
    // What was sealed is what is mapped: pages that a client took out may still be pinned.
    transfer->as_mapped = true;
  }
  return transfer;
}

Result<void> StoreLoop::open_segment(std::uint32_t segment) {
  if (device_.is_open(FileId(segment))) return {};
  const auto opened = device_.open_file(FileId(segment), segments_.path_of(segment));
  if (opened) {
    files_open_.insert(segment);
    return {};
  }
  go_offline(opened.error().message, opened.error().code == Errc::not_found ? ENOENT : 0);
  return offline();
}

void StoreLoop::end_write(WriteCommand& command, const Result<void>& transferred) {
  KVTIER_STORAGE_POINT("storage.write.completed");
  const RecordStore::Write& write = command.write;
  if (transferred) files_written_.insert(write.to.segment);
  if (!transferred || !command.erased_by.empty() || !health_.online()) {
    finish_write(command, !health_.online() ? Result<void>(offline())
                          : transferred     ? Result<void>(erased_meanwhile())
                                            : transferred);
    return;
  }
  DiskEntry entry;
  entry.identity = write.identity;
  entry.at = write.to;
  entry.record_bytes = write.record_bytes;
  entry.last_access = write.last_access;
  batch_.put(entry);
  KVTIER_STORAGE_POINT("storage.write.before_index_commit");
  on_commit_.push_back([this, command = std::move(command)](const Result<void>& indexed) mutable {
    if (indexed) {
      ++counters_.records_written;
      counters_.bytes_written += command.write.record_bytes;
    } else {
      keys_to_erase_.push_back(command.write.identity.key);
    }
    finish_write(command, indexed);
    KVTIER_STORAGE_POINT("storage.write.done");
  });
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
