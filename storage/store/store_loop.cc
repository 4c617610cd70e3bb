#include "storage/store/store_loop.h"

#include <string>

#include "core/base/check.h"
#include "storage/index/points.h"
#include "storage/index/record_checks.h"

namespace kvtier::storage {

StoreLoop::StoreLoop(const RecordStoreOptions& options, StoreDirectory& directory,
                     BlockDevice& device, Index& index, Segments& segments, StoreCounters& counters,
                     RecordStore::Post post)
    : options_(options),
      directory_(directory),
      device_(device),
      index_(index),
      segments_(segments),
      counters_(counters),
      post_(std::move(post)),
      health_(options.probe_first, options.probe_max),
      next_look_(Health::Clock::now() + options.check_interval),
      workers_(options.checksum_threads) {
  counters_.index_bytes = index_.file_bytes();
}

void StoreLoop::send(StoreCommand command) {
  {
    const std::lock_guard lock(inbox_mutex_);
    inbox_.push_back(std::move(command));
  }
  device_.wake();
}

void StoreLoop::run() {
  std::vector<BlockDevice::Completion> completions;
  for (;;) {
    take_commands();
    commit();
    start_transfers();
    advance_flushes();
    look_after_health();
    post_finished();
    if (is_over()) return;

    completions.clear();
    device_.reap(completions, BlockDevice::Wait::yes, until_next_look());
    for (auto& completion : completions) settle(completion);
    start_transfers();
    end_landed();
    commit();
    clear_places();
    post_finished();
  }
}

bool StoreLoop::is_over() const {
  return closing_ && reads_.empty() && reads_verifying_.empty() && looks_queued_.empty() &&
         scrubs_.empty() && scrubs_verifying_.empty() && writes_.empty() &&
         writes_sealing_.empty() && erases_pending_ == 0 && extents_populating_ == 0 &&
         flushes_.empty() && device_.in_flight() == 0;
}

void StoreLoop::take_commands() {
  std::deque<StoreCommand> commands;
  {
    const std::lock_guard lock(inbox_mutex_);
    commands.swap(inbox_);
  }
  for (StoreCommand& command : commands) {
    std::visit([this](auto&& one) { take(std::move(one)); }, std::move(command));
  }
}

// In the order of who waits: a request, then write-through, then nobody.
void StoreLoop::start_transfers() {
  start_reads();
  device_.submit();
  seal_ahead();
  start_writes();
  start_scrubs();
  device_.submit();
}

void StoreLoop::settle(BlockDevice::Completion& completion) {
  DiskLocation at;
  if (completion.tag == kSyncTag) {
    settle_sync(completion);
  } else if (auto read = reads_.extract(completion.tag)) {
    at = read.mapped().read.from;
    reads_landed_.emplace_back(std::move(read.mapped()), completion.result);
  } else if (auto write = writes_.extract(completion.tag)) {
    at = write.mapped().write.to;
    writes_landed_.emplace_back(std::move(write.mapped()), completion.result);
  } else {
    auto scrub = scrubs_.extract(completion.tag);
    KVTIER_CHECK(!scrub.empty());
    at = scrub.mapped().scrub.from;
    scrubs_landed_.emplace_back(std::move(scrub.mapped()), completion.result);
  }
  const int code = completion.result ? 0 : completion.code != 0 ? completion.code : EIO;
  if (health_.online() && health_.transfer_ended(code, at, Health::Clock::now())) {
    go_offline(completion.result.error().message, code);
  }
}

void StoreLoop::end_landed() {
  for (auto& [command, result] : reads_landed_) end_read(command, result);
  reads_landed_.clear();
  for (auto& [command, result] : writes_landed_) end_write(command, result);
  writes_landed_.clear();
  for (auto& [command, result] : scrubs_landed_) end_scrub(command, result);
  scrubs_landed_.clear();
}

void StoreLoop::commit() {
  if (batch_.empty() && on_commit_.empty()) return;
  Result<void> result = index_.commit(batch_);
  if (result) {
    namespaces_unsaved_.clear();
  } else {
    index_failed(result.error());
    result = offline();
  }
  for (auto& run : std::exchange(on_commit_, {})) run(result);
}

void StoreLoop::finish(RecordStore::Done<void>& done, Result<void> result) {
  finished_.push_back([done = std::move(done), result = std::move(result)] { done(result); });
}

void StoreLoop::post_finished() {
  if (finished_.empty()) return;
  post_([finished = std::exchange(finished_, {})] {
    for (const auto& run : finished) run();
  });
}

bool StoreLoop::hold(ExtentId extent) {
  const auto found = extents_.find(extent);
  if (found == extents_.end()) return false;
  ++found->second.pending;
  return true;
}

void StoreLoop::release(ExtentId extent) {
  const auto found = extents_.find(extent);
  if (found == extents_.end()) return;
  ExtentState& state = found->second;
  KVTIER_CHECK(state.pending > 0);
  if (--state.pending > 0 || state.forgotten == nullptr) return;
  device_.remove_buffer(state.buffer);
  buffers_used_.erase(state.buffer.value);
  finished_.push_back(std::move(state.forgotten));
  extents_.erase(found);
}

Result<BlockDevice::Transfer> StoreLoop::transfer_of(ExtentId extent, std::uint32_t slot,
                                                     std::uint64_t record_bytes, DiskLocation at,
                                                     std::uint64_t slot_bytes) const {
  const ExtentState& state = extents_.at(extent);
  const std::uint64_t begin = slot * state.slot_bytes;
  if (record_bytes > state.slot_bytes || begin + record_bytes > state.memory.size() ||
      !fits_slot(record_bytes, at, slot_bytes, options_.segment_bytes)) {
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

std::span<std::byte> StoreLoop::record_at(ExtentId extent, std::uint32_t slot,
                                          std::uint64_t bytes) const {
  const ExtentState& state = extents_.at(extent);
  return state.memory.subspan(slot * state.slot_bytes, bytes);
}

}  // namespace kvtier::storage
