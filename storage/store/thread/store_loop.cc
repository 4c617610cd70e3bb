#include "storage/store/thread/store_loop.h"

#include <cerrno>
#include <utility>

#include "core/base/check.h"
#include "storage/index/record_checks.h"

namespace kvtier::storage {

StoreLoop::StoreLoop(const RecordStoreOptions& options, StoreDirectory& directory,
                     BlockDevice& device, Index& index, Segments& segments, Erasures& erasures,
                     BadPlaces& bad, StoreCounters& counters, RecordStore::Post post)
    : directory_(directory),
      index_(index),
      shared_(options, device, counters, std::move(post)),
      availability_(shared_, {.fail_queued = [this](const Error& why) { fail_queued(why); },
                              .fail_writes =
                                  [this](const Error& why) {
                                    writes_.fail_queued(why);
                                    place_tests_.fail_queued(why);
                                  },
                              .look = [this] { return look(); },
                              .probe = [this](DiskState now) { return probe(now); }}),
      files_(shared_, availability_, segments),
      changes_(availability_, index, erasures),
      flushes_(shared_, availability_, files_, changes_, unsynced_),
      erases_(shared_, availability_, changes_, flushes_, unsynced_),
      extents_(shared_, workers_),
      reads_(shared_, availability_, extents_, files_, workers_),
      scrubs_(shared_, availability_, extents_.numbers(), files_, workers_),
      place_tests_(shared_, availability_, extents_.numbers(), files_, bad),
      writes_(shared_,
              {availability_, extents_, files_, changes_, erases_, flushes_, unsynced_, workers_}),
      workers_(options.checksum_threads) {
  counters.index_bytes = index_.file_bytes();
}

void StoreLoop::run() {
  std::vector<BlockDevice::Completion> completions;
  for (;;) {
    take_commands();
    changes_.commit();
    start_transfers();
    bound_unsynced();
    flushes_.advance();
    availability_.look_after();
    shared_.finished.post();
    if (is_over()) return;

    completions.clear();
    shared_.device.reap(completions, BlockDevice::Wait::yes, availability_.until_next_look());
    for (const auto& completion : completions) settle(completion);
    start_transfers();
    end_landed();
    changes_.commit();
    shared_.finished.post();
  }
}

bool StoreLoop::is_over() const {
  return shared_.closing && reads_.is_idle() && scrubs_.is_idle() && place_tests_.is_idle() &&
         writes_.is_idle() && erases_.pending() == 0 && !extents_.is_populating() &&
         flushes_.is_idle() && shared_.device.in_flight() == 0;
}

void StoreLoop::take_commands() {
  auto commands = shared_.inbox.take();
  for (StoreCommand& command : commands) {
    std::visit([this](auto& one) { take(std::move(one)); }, command);
  }
}

void StoreLoop::take(EraseCommand&& command) {
  const auto erase = erases_.begin(command);
  for (const Key& key : command.keys) writes_.overtake(key, erase);
  erases_.commit(erase, std::move(command.keys));
}

void StoreLoop::take(TouchCommand&& command) {
  changes_.touch(command.stamps);
  shared_.counters.stamps_pending -= command.stamps.size();
}

void StoreLoop::take(FlushCommand&& command) {
  flushes_.take(std::move(command), writes_.pending() + erases_.pending());
}

void StoreLoop::take(ChecksumCommand&& command) {
  const bool known =
      reads_.verified(command) || scrubs_.verified(command) || writes_.sealed(command);
  KVTIER_CHECK(known);
}

// What has not been started fails; what has is completed and made durable.
void StoreLoop::take(CloseCommand&&) {
  shared_.closing = true;
  fail_queued(closing_error());
  take(FlushCommand{[](const Result<void>&) {}});
}

// What a failed sync may cost, and the memory that says so, have a bound without anybody's flush.
void StoreLoop::bound_unsynced() {
  if (!unsynced_.is_many() || !flushes_.is_idle() || !availability_.online()) return;
  take(FlushCommand{[](const Result<void>&) {}});
}

// In the order of who waits: a request, then write-through, then nobody.
void StoreLoop::start_transfers() {
  reads_.start();
  shared_.device.submit();
  writes_.seal_ahead();
  writes_.start(reads_.is_waiting());
  const bool others_wait = reads_.is_waiting() || writes_.is_waiting();
  scrubs_.start(others_wait);
  place_tests_.start(others_wait);
  shared_.device.submit();
}

void StoreLoop::settle(const BlockDevice::Completion& completion) {
  using Transfer = Health::Transfer;
  if (completion.tag == kSyncTag) {
    flushes_.land_sync(completion);
    return availability_.transfer_ended(Transfer::sync, completion, {});
  }
  if (const auto at = writes_.land(completion)) {
    return availability_.transfer_ended(Transfer::write, completion, *at);
  }
  if (place_tests_.land(completion)) return;
  auto at = reads_.land(completion);
  if (!at) at = scrubs_.land(completion);
  KVTIER_CHECK(at);
  availability_.transfer_ended(Transfer::read, completion, *at);
}

void StoreLoop::end_landed() {
  reads_.end_landed();
  writes_.end_landed();
  scrubs_.end_landed();
  place_tests_.end_landed();
}

void StoreLoop::fail_queued(const Error& why) {
  reads_.fail_queued(why);
  scrubs_.fail_queued(why);
  place_tests_.fail_queued(why);
  writes_.fail_queued(why);
}

Result<void> StoreLoop::look() {
  shared_.counters.index_bytes = index_.file_bytes();
  shared_.counters.index_memory_bytes = index_.memory_bytes();
  shared_.counters.index_full = !index_.has_room();
  return directory_.look();
}

// Everything that a record needs, and what could not be done meanwhile. Where records could be read
// all the time, the files are those that are open, unless something else was mounted in their
// place.
Result<void> StoreLoop::probe(DiskState now) {
  const bool anew = now == DiskState::offline;
  if (!anew && !(writes_.is_idle() && flushes_.is_idle()))
    return make_error(Errc::unavailable, "writes are still in flight");
  if (const auto there = anew ? Result<void>{} : directory_.look(); !there) {
    availability_.go_offline(there.error().message, ENOENT);
    return there;
  }
  if (const auto usable = directory_.probe(); !usable) return usable;
  if (const auto seen = anew ? files_.look_again() : Result<void>{}; !seen) return seen;
  if (const auto revived = changes_.revive(); !revived) return revived;
  if (anew) files_.close_all();
  return changes_.make_up();
}

}  // namespace kvtier::storage
