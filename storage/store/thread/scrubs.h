// Scrubs: reads into memory of the store's own, behind all reads and writes, to see whether records
// still hold on disk.
//
// Owned by the loop, on the store's thread. It holds:
// - A scrub is queued, in flight, landed or being verified, and ends once, in finish(); its part of
//   the memory goes back before that.
// - While reads or writes wait, at most one is in flight, and only one that has waited long.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "storage/store/thread/own_memory.h"

namespace kvtier::storage {

class Scrubs {
 public:
  Scrubs(StoreShared& shared, Availability& availability, BufferNumbers& numbers,
         SegmentFiles& files, Workers& workers);

  void take(ScrubCommand&& command);
  // `others_wait`: reads or writes that are not in flight yet.
  void start(bool others_wait);
  // Where the scrub with that tag is from; none if none of them has it.
  std::optional<DiskLocation> land(const BlockDevice::Completion& completion);
  void end_landed();
  // False: no scrub is being verified under that tag.
  bool verified(const ChecksumCommand& command);
  void fail_queued(const Result<void>& failed);

  bool is_idle() const noexcept { return in_flight_.empty() && verifying_.empty(); }

 private:
  bool may_start(bool others_wait) const;
  Result<BlockDevice::Transfer> prepare(ScrubCommand& command);
  void end(ScrubCommand& command, const Result<void>& transferred);
  void finish(ScrubCommand& command, Result<void> result);

  StoreShared& shared_;
  Availability& availability_;
  SegmentFiles& files_;
  Workers& workers_;
  OwnMemory memory_;
  std::deque<ScrubCommand> queued_;
  std::unordered_map<std::uint64_t, ScrubCommand> in_flight_, verifying_;  // by tag
  std::vector<std::pair<ScrubCommand, Result<void>>> landed_;
};

}  // namespace kvtier::storage
