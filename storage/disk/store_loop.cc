#include "storage/disk/store_loop.h"

#include <string>

#include "client/base/check.h"

namespace kvtier::storage {
namespace {

constexpr std::uint64_t kSyncTag = 0;  // one sync is in flight at a time

Error not_registered(ExtentId extent) {
  return make_error(Errc::invalid, "extent " + std::to_string(extent.value) + " is not registered");
}

}  // namespace

StoreLoop::StoreLoop(const RecordStoreOptions& options, BlockDevice& device, Index& index,
                     Segments& segments, StoreCounters& counters, RecordStore::Post post)
    : options_(options),
      device_(device),
      index_(index),
      segments_(segments),
      counters_(counters),
      post_(std::move(post)) {}

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
    start_reads();
    device_.submit();
    start_writes();
    advance_flushes();
    post_finished();
    if (is_over()) return;

    completions.clear();
    device_.reap(completions, BlockDevice::Wait::yes);
    for (auto& completion : completions) settle(completion);
    start_reads();
    device_.submit();
    for (auto& [command, result] : reads_landed_) end_read(command, result);
    reads_landed_.clear();
    for (auto& [command, result] : writes_landed_) end_write(command, result);
    writes_landed_.clear();
    commit();
    post_finished();
  }
}

bool StoreLoop::is_over() const {
  return closing_ && reads_.empty() && writes_.empty() && reads_queued_.empty() &&
         writes_queued_.empty() && erases_pending_ == 0 && flushes_.empty() &&
         device_.in_flight() == 0;
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

bool StoreLoop::hold(ExtentId extent) {
  const auto found = extents_.find(extent);
  if (found == extents_.end()) return false;
  ++found->second.pending;
  return true;
}

void StoreLoop::take(ReadCommand&& command) {
  if (hold(command.read.extent)) {
    reads_queued_.push_back(std::move(command));
    return;
  }
  --counters_.reads_pending;
  finish(command.done, not_registered(command.read.extent));
}

void StoreLoop::take(WriteCommand&& command) {
  if (hold(command.write.extent)) {
    ++keys_being_written_[command.write.identity.key];
    command.flushes_before = flushes_seen_;
    writes_queued_.push_back(std::move(command));
    return;
  }
  --counters_.writes_pending;
  finish(command.done, not_registered(command.write.extent));
}

void StoreLoop::take(EraseCommand&& command) {
  ++erases_pending_;
  auto erase = std::make_shared<PendingErase>();
  erase->done = std::move(command.done);
  erase->flushes_before = flushes_seen_;
  for (const Key& key : command.keys) {
    batch_.erase(key);
    overtake_writes(key, erase);
  }
  on_commit_.push_back([this, erase](const Result<void>& result) {
    erase->result = result;
    end_part(*erase);
  });
}

void StoreLoop::take(TouchCommand&& command) {
  for (const auto& [key, stamp] : command.stamps) batch_.touch(key, stamp);
  counters_.stamps_pending -= command.stamps.size();
}

void StoreLoop::take(NamespaceCommand&& command) {
  batch_.put_namespace(command.id, command.encoded);
}

void StoreLoop::take(FlushCommand&& command) {
  Flush flush;
  flush.number = ++flushes_seen_;
  flush.done = std::move(command.done);
  flush.waiting = writes_queued_.size() + writes_.size() + erases_pending_;
  flushes_.push_back(std::move(flush));
}

void StoreLoop::take(RegisterCommand&& command) {
  std::uint32_t id = 0;
  while (buffers_used_.contains(id)) ++id;
  if (extents_.contains(command.extent) || id >= device_.limits().buffers) {
    command.answer->set_value(make_error(
        Errc::invalid,
        "extent " + std::to_string(command.extent.value) +
            (extents_.contains(command.extent) ? " is registered already" : ": too many extents")));
    return;
  }
  auto added = device_.add_buffer(BufferId(id), command.memory);
  if (added) {
    buffers_used_.insert(id);
    extents_[command.extent] = {BufferId(id), command.memory, command.slot_bytes, 0, nullptr};
  }
  command.answer->set_value(std::move(added));
}

void StoreLoop::take(ForgetCommand&& command) {
  const auto extent = extents_.find(command.extent);
  if (extent == extents_.end()) {
    command.answer->set_value();
    return;
  }
  ++extent->second.pending;
  extent->second.forgotten = command.answer;
  release(command.extent);
}

// What has not been started fails; what has is completed and made durable.
void StoreLoop::take(CloseCommand&&) {
  closing_ = true;
  const Result<void> closing = make_error(Errc::unavailable, "the record store is closing");
  for (auto& command : std::exchange(reads_queued_, {})) finish_read(command, closing);
  for (auto& command : std::exchange(writes_queued_, {})) finish_write(command, closing);
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
  for (auto& [tag, command] : writes_) overtake(command);
}

void StoreLoop::end_part(PendingErase& erase) {
  KVTIER_CHECK(erase.parts > 0);
  if (--erase.parts > 0) return;
  --erases_pending_;
  finish(erase.done, erase.result);
  end_before_flush(erase.flushes_before);
}

void StoreLoop::commit() {
  const auto result = index_.commit(batch_);
  for (auto& run : std::exchange(on_commit_, {})) run(result);
}

void StoreLoop::settle(BlockDevice::Completion& completion) {
  if (completion.tag == kSyncTag) {
    KVTIER_CHECK(!flushes_.empty() && flushes_.front().started);
    Flush& flush = flushes_.front();
    if (!completion.result) {
      flush.result = completion.result;
      files_written_.insert(flush.files.back());
    }
    flush.files.pop_back();
    sync_next_file(flush);
  } else if (auto read = reads_.extract(completion.tag)) {
    reads_landed_.emplace_back(std::move(read.mapped()), std::move(completion.result));
  } else {
    auto write = writes_.extract(completion.tag);
    KVTIER_CHECK(!write.empty());
    writes_landed_.emplace_back(std::move(write.mapped()), std::move(completion.result));
  }
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

void StoreLoop::release(ExtentId extent) {
  const auto found = extents_.find(extent);
  if (found == extents_.end()) return;
  ExtentState& state = found->second;
  KVTIER_CHECK(state.pending > 0);
  if (--state.pending > 0 || state.forgotten == nullptr) return;
  device_.remove_buffer(state.buffer);
  buffers_used_.erase(state.buffer.value);
  state.forgotten->set_value();
  extents_.erase(found);
}

void StoreLoop::end_before_flush(std::uint64_t flushes_before) {
  for (Flush& flush : flushes_) {
    if (flush.number <= flushes_before) continue;
    KVTIER_CHECK(flush.waiting > 0);
    --flush.waiting;
  }
}

void StoreLoop::advance_flushes() {
  while (!flushes_.empty()) {
    Flush& flush = flushes_.front();
    if (flush.waiting > 0) return;
    if (!flush.started) start_flush(flush);
    if (!flush.files.empty()) return;
    if (auto synced = index_.sync(); flush.result && !synced) flush.result = synced;
    finish(flush.done, flush.result);
    flushes_.pop_front();
  }
}

void StoreLoop::start_flush(Flush& flush) {
  flush.started = true;
  flush.files.assign(files_written_.begin(), files_written_.end());
  files_written_.clear();
  sync_next_file(flush);
}

void StoreLoop::sync_next_file(Flush& flush) {
  if (flush.files.empty()) return;
  device_.sync(FileId(flush.files.back()), kSyncTag);
  device_.submit();
}

}  // namespace kvtier::storage
