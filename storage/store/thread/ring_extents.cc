#include "storage/store/thread/ring_extents.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/base/fd.h"
#include "core/base/units.h"
#include "storage/index/record_checks.h"
#include "storage/index/segments.h"

namespace kvtier::storage {

Error not_registered(ExtentId extent) {
  return make_error(Errc::invalid, "extent " + std::to_string(extent.value) + " is not registered");
}

void RingExtents::add(const RegisterCommand& command) {
  const BufferId id = numbers_.first_free();
  const auto added = shared_.device.add_buffer(id, command.memory);
  if (!added) {
    spdlog::warn("extent {} takes no part in disk I/O: {}", command.extent.value,
                 added.error().message);
    return;
  }
  numbers_.take(id);
  State& state = extents_[command.extent];
  state.buffer = id;
  state.memory = command.memory;
  state.slot_bytes = command.slot_bytes;
  state.pending = 1;
  ++populating_;
  populate_next(command.extent, state, 0);
}

// Memory without pages would keep this thread for a second a GiB, so a worker gives them to it,
// between the checksums.
void RingExtents::populate_next(ExtentId extent, State& state, std::size_t from) {
  constexpr std::size_t kPiece = 8_MiB;
  const auto piece = state.memory.subspan(from, std::min(kPiece, state.memory.size() - from));
  workers_.submit([&inbox = shared_.inbox, extent, piece, end = from + piece.size()] {
    populate_in_pieces(piece);
    inbox.send(PopulatedCommand{extent, end});
  });
}

void RingExtents::populated(const PopulatedCommand& command) {
  State& state = extents_.at(command.extent);
  const bool wanted = state.forgotten == nullptr && !shared_.closing;
  if (wanted && command.bytes < state.memory.size()) {
    populate_next(command.extent, state, command.bytes);
    return;
  }
  if (wanted && !state.at_fault) shared_.device.pin_buffer(state.buffer);
  --populating_;
  release(command.extent);
}

void RingExtents::forget(ForgetCommand&& command) {
  const auto extent = extents_.find(command.extent);
  if (extent == extents_.end()) {
    shared_.finished.add(std::move(command.done));
    return;
  }
  ++extent->second.pending;
  extent->second.forgotten = std::move(command.done);
  release(command.extent);
}

bool RingExtents::hold(ExtentId extent) {
  const auto found = extents_.find(extent);
  if (found == extents_.end()) return false;
  ++found->second.pending;
  return true;
}

void RingExtents::release(ExtentId extent) {
  const auto found = extents_.find(extent);
  if (found == extents_.end()) return;
  State& state = found->second;
  KVTIER_CHECK(state.pending > 0);
  if (--state.pending > 0 || state.forgotten == nullptr) return;
  shared_.device.remove_buffer(state.buffer);
  numbers_.give_back(state.buffer);
  shared_.finished.add(std::move(state.forgotten));
  extents_.erase(found);
}

Result<BlockDevice::Transfer> RingExtents::transfer(ExtentId extent, std::uint32_t slot,
                                                    std::uint64_t record_bytes, DiskLocation at,
                                                    std::uint64_t slot_bytes) const {
  const State& state = extents_.at(extent);
  const std::uint64_t begin = slot * state.slot_bytes;
  if (record_bytes > state.slot_bytes || begin + record_bytes > state.memory.size() ||
      !fits_slot(record_bytes, at, slot_bytes, shared_.options.segment_bytes)) {
    return does_not_fit(record_bytes, at);
  }
  BlockDevice::Transfer transfer;
  transfer.file = FileId(at.segment);
  transfer.offset = slot_offset(at.slot, slot_bytes);
  transfer.buffer = state.buffer;
  transfer.memory = state.memory.data() + begin;
  transfer.bytes = static_cast<std::uint32_t>(record_bytes);
  return transfer;
}

std::span<std::byte> RingExtents::record(ExtentId extent, std::uint32_t slot,
                                         std::uint64_t bytes) const {
  const State& state = extents_.at(extent);
  return state.memory.subspan(slot * state.slot_bytes, bytes);
}

// A client has written to the slot, or has taken pages out of the extent, which are then new ones
// for all who map it: the old ones, if the kernel holds them for the device, are read by nobody. So
// it holds them no more.
void RingExtents::note_memory_fault(ExtentId extent) {
  ++shared_.counters.memory_faults;
  State& state = extents_.at(extent);
  if (std::exchange(state.at_fault, true)) return;
  shared_.device.unpin_buffer(state.buffer);
  spdlog::warn(
      "extent {}: a record that holds on disk did not where it had been read to: a client writes "
      "where it has no slot, or takes pages away; disk I/O there is slower from now on",
      extent.value);
}

}  // namespace kvtier::storage
