#include "storage/store/thread/writes.h"

#include "core/base/check.h"
#include "storage/index/points.h"
#include "storage/index/record_checks.h"

namespace kvtier::storage {
namespace {

Error sync_failed_meanwhile() {
  return make_error(Errc::unavailable, "a sync of its segment failed while it was written");
}

}  // namespace

void Writes::take(WriteCommand&& command) {
  const bool known = parts_.extents.hold(command.write.extent);
  ++keys_[command.write.identity.key];
  command.flushes_before = parts_.flushes.seen();
  KVTIER_STORAGE_POINT("storage.write.taken");
  if (known && parts_.availability.online()) {
    if (const auto& replaced = command.write.replaces) {
      parts_.changes.erase_replaced(*replaced);
      parts_.unsynced.remove(*replaced);
    }
    queued_.push_back(std::move(command));
  } else {
    finish(command, known ? parts_.availability.offline() : not_registered(command.write.extent));
  }
}

void Writes::seal_ahead() {
  while (!queued_.empty() &&
         sealing_.size() + sealed_.size() < shared_.options.writes_in_flight_max) {
    WriteCommand command = std::move(queued_.front());
    queued_.pop_front();
    const RecordStore::Write& write = command.write;
    const auto fits = parts_.extents.transfer(write.extent, write.slot, write.record_bytes,
                                              write.to, write.slot_bytes);
    if (!fits) {
      finish(command, fits.error());
      continue;
    }
    const auto record = parts_.extents.record(write.extent, write.slot, write.record_bytes);
    if (record.size() <= kChecksumInlineBytesMax) {
      note_sealed(command, seal_record(record, write.identity, parts_.changes.era()));
    } else {
      const std::uint64_t tag = shared_.new_tag();
      const BlockIdentity identity = write.identity;
      sealing_.emplace(tag, std::move(command));
      const std::uint64_t era = parts_.changes.era();
      parts_.workers.submit([&inbox = shared_.inbox, tag, record, identity, era] {
        inbox.send(ChecksumCommand{tag, seal_record(record, identity, era)});
      });
    }
  }
}

bool Writes::sealed(const ChecksumCommand& command) {
  auto write = sealing_.extract(command.tag);
  if (write.empty()) return false;
  note_sealed(write.mapped(), command.result);
  return true;
}

void Writes::note_sealed(WriteCommand& command, const Result<void>& result) {
  KVTIER_STORAGE_POINT("storage.write.sealed");
  if (!result) {
    finish(command, result);
  } else if (shared_.closing) {
    finish(command, closing_error());
  } else if (!parts_.availability.online()) {
    finish(command, parts_.availability.offline());
  } else {
    sealed_.push_back(std::move(command));
  }
}

void Writes::start(bool reads_wait) {
  const std::size_t share = shared_.options.writes_in_flight_max;
  const std::size_t at_most = reads_wait ? share / 4 + 1 : share;
  std::vector<WriteCommand> starting;
  while (!sealed_.empty() && in_flight_.size() + starting.size() < at_most) {
    WriteCommand command = std::move(sealed_.front());
    sealed_.pop_front();
    if (command.erased_by.empty()) {
      starting.push_back(std::move(command));
    } else {
      finish(command, erased_meanwhile());
    }
  }
  if (starting.empty()) return;
  for (WriteCommand& command : starting) submit(std::move(command));
  shared_.device.submit();
  KVTIER_STORAGE_POINT("storage.write.submitted");
}

void Writes::submit(WriteCommand command) {
  auto transfer = prepare(command.write);
  if (!transfer) {
    return finish(command,
                  parts_.availability.online() ? transfer.error() : parts_.availability.offline());
  }
  transfer->tag = shared_.new_tag();
  command.doubts_before = parts_.unsynced.doubts(command.write.to.segment);
  KVTIER_STORAGE_POINT("storage.write.before_submit");
  shared_.device.write(*transfer);
  in_flight_.emplace(transfer->tag, std::move(command));
}

Result<BlockDevice::Transfer> Writes::prepare(const RecordStore::Write& write) {
  if (!parts_.availability.online()) return parts_.availability.offline();
  if (!parts_.changes.has_room()) {
    shared_.counters.index_full = true;
    return make_error(Errc::no_space, "the index of the disk tier has filled its share");
  }
  if (const auto open = parts_.files.open_to_write(write.to, write.slot_bytes); !open)
    return open.error();
  auto transfer = parts_.extents.transfer(write.extent, write.slot, write.record_bytes, write.to,
                                          write.slot_bytes);
  if (transfer) {
    transfer->priority = BlockDevice::Priority::write;
    // What was sealed is what is mapped: pages that a client took out may still be pinned.
    transfer->as_mapped = true;
  }
  return transfer;
}

std::optional<DiskLocation> Writes::land(const BlockDevice::Completion& completion) {
  auto write = in_flight_.extract(completion.tag);
  if (write.empty()) return std::nullopt;
  const DiskLocation at = write.mapped().write.to;
  landed_.emplace_back(std::move(write.mapped()), completion.result);
  return at;
}

void Writes::end_landed() {
  for (auto& [command, result] : landed_) end(command, result);
  landed_.clear();
}

void Writes::end(WriteCommand& command, const Result<void>& transferred) {
  KVTIER_STORAGE_POINT("storage.write.completed");
  const RecordStore::Write& write = command.write;
  if (transferred) parts_.files.note_written(write.to.segment);
  if (!transferred || !command.erased_by.empty() || !parts_.availability.online()) {
    return finish(command, parts_.availability.or_offline(
                               transferred ? Result<void>(erased_meanwhile()) : transferred));
  }
  if (command.doubts_before != parts_.unsynced.doubts(write.to.segment)) {
    return finish(command, sync_failed_meanwhile());
  }
  DiskEntry entry;
  entry.identity = write.identity;
  entry.at = write.to;
  entry.record_bytes = write.record_bytes;
  entry.last_access = write.last_access;
  parts_.changes.put(entry);
  KVTIER_STORAGE_POINT("storage.write.before_index_commit");
  parts_.changes.when_committed(
      [this, command = std::move(command)](const Result<void>& indexed) mutable {
        if (indexed) {
          ++shared_.counters.records_written;
          shared_.counters.bytes_written += command.write.record_bytes;
          parts_.unsynced.add(command.write.identity.key, command.write.to);
        } else {
          parts_.changes.erase_on_return({&command.write.identity.key, 1});
        }
        finish(command, indexed);
        KVTIER_STORAGE_POINT("storage.write.done");
      });
}

void Writes::fail_queued(const Result<void>& failed) {
  for (auto& command : std::exchange(queued_, {})) finish(command, failed);
  for (auto& command : std::exchange(sealed_, {})) finish(command, failed);
}

void Writes::overtake(const Key& key, const std::shared_ptr<PendingErase>& erase) {
  if (!keys_.contains(key)) return;
  const auto overtake = [&](WriteCommand& command) {
    if (command.write.identity.key != key) return;
    command.erased_by.push_back(erase);
    ++erase->parts;
  };
  for (WriteCommand& command : queued_) overtake(command);
  for (auto& [tag, command] : sealing_) overtake(command);
  for (WriteCommand& command : sealed_) overtake(command);
  for (auto& [tag, command] : in_flight_) overtake(command);
}

void Writes::finish(WriteCommand& command, Result<void> result) {
  if (!result) ++shared_.counters.write_failures;
  --shared_.counters.writes_pending;
  const auto key = keys_.find(command.write.identity.key);
  KVTIER_CHECK(key != keys_.end());
  if (--key->second == 0) keys_.erase(key);
  parts_.flushes.end_before(command.flushes_before);
  for (const auto& erase : command.erased_by) parts_.erases.end_part(*erase);
  const ExtentId extent = command.write.extent;
  shared_.finished.add(command.done, std::move(result));
  parts_.extents.release(extent);
}

}  // namespace kvtier::storage
