// Reads into extents: queued, in flight, landed, then verified. What does not hold where it landed,
// which clients can write to, takes all of that once more into memory of the store's own (a second
// look).
//
// Owned by the loop, on the store's thread. It holds:
// - A read is in one of these places at a time and ends once, in finish(); until then it holds its
//   extent.
// - It is good only if header, key, namespace and both checksums hold where no client can have
//   written meanwhile.
// - Second looks go before other reads: whoever waits for them has waited for one read already.
// Nothing waits here for a device or a worker.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "storage/store/thread/own_memory.h"

namespace kvtier::storage {

class Reads {
 public:
  Reads(StoreShared& shared, Availability& availability, RingExtents& extents, SegmentFiles& files,
        Workers& workers);

  void take(ReadCommand&& command);
  void start();
  // Where the read with that tag is from; none if none of them has it.
  std::optional<DiskLocation> land(const BlockDevice::Completion& completion);
  void end_landed();
  // False: no read is being verified under that tag.
  bool verified(const ChecksumCommand& command);
  // Of those that are not in flight and not being verified.
  void fail_queued(const Result<void>& failed);

  bool is_waiting() const noexcept { return !queued_.empty(); }
  bool is_idle() const noexcept {
    return in_flight_.empty() && verifying_.empty() && looks_queued_.empty();
  }

 private:
  void start_second_looks();
  void submit(ReadCommand command, Result<BlockDevice::Transfer> transfer);
  Result<BlockDevice::Transfer> prepare(const RecordStore::Read& read);
  Result<BlockDevice::Transfer> prepare_second_look(ReadCommand& command);
  void end(ReadCommand& command, const Result<void>& transferred);
  void judge(ReadCommand& command, Result<void> intact);
  void finish(ReadCommand& command, Result<void> result);

  StoreShared& shared_;
  Availability& availability_;
  RingExtents& extents_;
  SegmentFiles& files_;
  Workers& workers_;
  OwnMemory look_memory_;
  std::deque<ReadCommand> queued_, looks_queued_;
  std::unordered_map<std::uint64_t, ReadCommand> in_flight_, verifying_;  // by tag
  std::vector<std::pair<ReadCommand, Result<void>>> landed_;
};

}  // namespace kvtier::storage
