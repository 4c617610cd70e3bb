// Writes from extents: what a write replaces leaves the index, it is sealed, waits for its turn, is
// written and then indexed.
//
// Owned by the loop, on the store's thread. It holds:
// - A write is queued, being sealed, sealed, in flight or landed, and ends once, in finish(); until
//   then it holds its extent and its key counts as being written.
// - Nothing in the index points to a place that is being written to: what a write replaces goes in
//   the batch of the turn that took it, which is committed before any transfer is started. A
//   record's bytes are on the device before its entry is put.
// - One during which a sync of its segment failed is not indexed: that sync may have lost it.
// - One that an erase has overtaken is not indexed, and the erase waits for its end.
// Checksums of large records are computed by workers, ahead of a write's turn, so that the device
// never waits for them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/record/key_hash.h"
#include "storage/store/thread/erases.h"
#include "storage/store/thread/ring_extents.h"

namespace kvtier::storage {

class Writes {
 public:
  struct Parts {
    Availability& availability;
    RingExtents& extents;
    SegmentFiles& files;
    IndexChanges& changes;
    Erases& erases;
    Flushes& flushes;
    Unsynced& unsynced;
    Workers& workers;
  };
  Writes(StoreShared& shared, const Parts& parts) : shared_(shared), parts_(parts) {}

  void take(WriteCommand&& command);
  // As many as can be in flight, so that each completion finds the next one ready.
  void seal_ahead();
  // While reads wait, a request does: writes then keep to a quarter of their share.
  void start(bool reads_wait);
  // Where the write with that tag goes; none if none of them has it.
  std::optional<DiskLocation> land(const BlockDevice::Completion& completion);
  void end_landed();
  // False: no write is being sealed under that tag.
  bool sealed(const ChecksumCommand& command);
  // Of those that are not in flight and not being sealed.
  void fail_queued(const Result<void>& failed);
  // Has `erase` wait for all writes of the key.
  void overtake(const Key& key, const std::shared_ptr<PendingErase>& erase);

  // Taken and not landed.
  std::size_t pending() const noexcept {
    return queued_.size() + sealing_.size() + sealed_.size() + in_flight_.size();
  }
  bool is_waiting() const noexcept { return !queued_.empty() || !sealed_.empty(); }
  bool is_idle() const noexcept { return in_flight_.empty() && sealing_.empty(); }

 private:
  void note_sealed(WriteCommand& command, const Result<void>& result);
  void submit(WriteCommand command);
  Result<BlockDevice::Transfer> prepare(const RecordStore::Write& write);
  void end(WriteCommand& command, const Result<void>& transferred);
  void finish(WriteCommand& command, Result<void> result);

  StoreShared& shared_;
  const Parts parts_;
  std::deque<WriteCommand> queued_, sealed_;
  std::unordered_map<std::uint64_t, WriteCommand> sealing_, in_flight_;  // by tag
  std::vector<std::pair<WriteCommand, Result<void>>> landed_;
  std::unordered_map<Key, std::uint32_t, KeyHash> keys_;  // being written, and how often
};

}  // namespace kvtier::storage
