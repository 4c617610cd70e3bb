// What the store's thread takes from the control thread and from the workers.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>

#include "core/base/check.h"
#include "core/base/fd.h"
#include "core/base/units.h"
#include "storage/index/points.h"
#include "storage/store/store_loop.h"

namespace kvtier::storage {
namespace {

Error not_registered(ExtentId extent) {
  return make_error(Errc::invalid, "extent " + std::to_string(extent.value) + " is not registered");
}

}  // namespace

void StoreLoop::take(ReadCommand&& command) {
  const bool known = hold(command.read.extent);
  if (known && health_.online()) {
    reads_queued_.push_back(std::move(command));
  } else {
    finish_read(command, known ? offline() : not_registered(command.read.extent));
  }
}

void StoreLoop::take(WriteCommand&& command) {
  const bool known = hold(command.write.extent);
  ++keys_being_written_[command.write.identity.key];
  command.flushes_before = flushes_seen_;
  KVTIER_STORAGE_POINT("storage.write.taken");
  if (known && health_.online()) {
    writes_queued_.push_back(std::move(command));
  } else {
    finish_write(command, known ? offline() : not_registered(command.write.extent));
  }
}

void StoreLoop::take(ScrubCommand&& command) {
  command.since = Health::Clock::now();
  if (health_.online()) {
    scrubs_queued_.push_back(std::move(command));
  } else {
    finish_scrub(command, offline());
  }
}

// Offline, the entries are left for the return; what is in flight is waited for all the same.
void StoreLoop::take(EraseCommand&& command) {
  ++erases_pending_;
  KVTIER_STORAGE_POINT("storage.erase.taken");
  auto erase = std::make_shared<PendingErase>();
  erase->done = std::move(command.done);
  erase->flushes_before = flushes_seen_;
  for (const Key& key : command.keys) overtake_writes(key, erase);
  if (!health_.online()) {
    keys_to_erase_.insert(keys_to_erase_.end(), command.keys.begin(), command.keys.end());
    erase->result = offline();
    end_part(*erase);
    return;
  }
  for (const Key& key : command.keys) batch_.erase(key);
  on_commit_.push_back([this, erase, keys = std::move(command.keys)](const Result<void>& result) {
    if (!result) keys_to_erase_.insert(keys_to_erase_.end(), keys.begin(), keys.end());
    erase->result = result;
    end_part(*erase);
  });
}

void StoreLoop::take(TouchCommand&& command) {
  if (health_.online()) {
    for (const auto& [key, stamp] : command.stamps) batch_.touch(key, stamp);
  }
  counters_.stamps_pending -= command.stamps.size();
}

void StoreLoop::take(NamespaceCommand&& command) {
  if (health_.online()) batch_.put_namespace(command.id, command.encoded);
  namespaces_unsaved_.push_back(std::move(command));
}

void StoreLoop::take(FlushCommand&& command) {
  Flush flush;
  flush.number = ++flushes_seen_;
  flush.done = std::move(command.done);
  flush.waiting = writes_queued_.size() + writes_sealing_.size() + writes_sealed_.size() +
                  writes_cleared_.size() + writes_.size() + erases_pending_;
  flushes_.push_back(std::move(flush));
}

void StoreLoop::take(RegisterCommand&& command) {
  std::uint32_t id = 0;
  while (buffers_used_.contains(id)) ++id;
  const auto added = device_.add_buffer(BufferId(id), command.memory);
  if (!added) {
    spdlog::warn("extent {} takes no part in disk I/O: {}", command.extent.value,
                 added.error().message);
    return;
  }
  buffers_used_.insert(id);
  ExtentState& state = extents_[command.extent];
  state.buffer = BufferId(id);
  state.memory = command.memory;
  state.slot_bytes = command.slot_bytes;
  state.pending = 1;
  ++extents_populating_;
  populate_next(command.extent, state, 0);
}

// Memory without pages would keep this thread for a second a GiB, so a worker gives them to it,
// between the checksums. Until all are there, each transfer pins its own.
void StoreLoop::populate_next(ExtentId extent, ExtentState& state, std::size_t from) {
  constexpr std::size_t kPiece = 8_MiB;
  const auto piece = state.memory.subspan(from, std::min(kPiece, state.memory.size() - from));
  workers_.submit([this, extent, piece, end = from + piece.size()] {
    populate_in_pieces(piece);
    send(PopulatedCommand{extent, end});
  });
}

void StoreLoop::take(PopulatedCommand&& command) {
  ExtentState& state = extents_.at(command.extent);
  const bool wanted = state.forgotten == nullptr && !closing_;
  if (wanted && command.bytes < state.memory.size()) {
    populate_next(command.extent, state, command.bytes);
    return;
  }
  if (wanted && !state.at_fault) device_.pin_buffer(state.buffer);
  --extents_populating_;
  release(command.extent);
}

void StoreLoop::take(ForgetCommand&& command) {
  const auto extent = extents_.find(command.extent);
  if (extent == extents_.end()) {
    finished_.push_back(std::move(command.done));
    return;
  }
  ++extent->second.pending;
  extent->second.forgotten = std::move(command.done);
  release(command.extent);
}

void StoreLoop::take(HealthCommand&& command) {
  health_changed_ = std::move(command.changed);
  if (!health_.online()) announce(false, offline_why_);
}

void StoreLoop::take(ChecksumCommand&& command) {
  if (auto read = reads_verifying_.extract(command.tag)) {
    read_verified(read.mapped(), std::move(command.result));
  } else if (auto scrub = scrubs_verifying_.extract(command.tag)) {
    scrub_verified(scrub.mapped(), std::move(command.result));
  } else {
    auto write = writes_sealing_.extract(command.tag);
    KVTIER_CHECK(!write.empty());
    sealed(write.mapped(), command.result);
  }
}

// What has not been started fails; what has is completed and made durable.
void StoreLoop::take(CloseCommand&&) {
  closing_ = true;
  const Result<void> closing = make_error(Errc::unavailable, "the record store is closing");
  for (auto& command : std::exchange(reads_queued_, {})) finish_read(command, closing);
  for (auto& command : std::exchange(looks_queued_, {})) finish_read(command, closing);
  for (auto& command : std::exchange(scrubs_queued_, {})) finish_scrub(command, closing);
  for (auto& command : std::exchange(writes_queued_, {})) finish_write(command, closing);
  for (auto& command : std::exchange(writes_sealed_, {})) finish_write(command, closing);
  for (auto& command : std::exchange(writes_cleared_, {})) finish_write(command, closing);
  take(FlushCommand{[](const Result<void>&) {}});
}

void StoreLoop::overtake_writes(const Key& key, const std::shared_ptr<PendingErase>& erase) {
  if (!keys_being_written_.contains(key)) return;
  const auto overtake = [&](WriteCommand& command) {
    if (command.write.identity.key != key) return;
    command.erased_by.push_back(erase);
    ++erase->parts;
  };
  for (WriteCommand& command : writes_queued_) overtake(command);
  for (auto& [tag, command] : writes_sealing_) overtake(command);
  for (WriteCommand& command : writes_sealed_) overtake(command);
  for (WriteCommand& command : writes_cleared_) overtake(command);
  for (auto& [tag, command] : writes_) overtake(command);
}

void StoreLoop::end_part(PendingErase& erase) {
  KVTIER_CHECK(erase.parts > 0);
  if (--erase.parts > 0) return;
  --erases_pending_;
  KVTIER_STORAGE_POINT("storage.erase.done");
  finish(erase.done, erase.result);
  end_before_flush(erase.flushes_before);
}

}  // namespace kvtier::storage
