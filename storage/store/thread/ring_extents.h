// The extents that the device knows as memory: where their slots lie, how many transfers each has,
// and when the ring lets go of one.
//
// Owned by the loop, on the store's thread. It holds:
// - An extent is here from its registration until it was forgotten and its last hold has ended;
//   until then its memory stays the device's. hold() and release() come in pairs, and being
//   populated is one hold.
// - Its pages are pinned once all of them are there, unless a client was seen to change them. Until
//   then, and from then on, each transfer pins its own.
// - A buffer number names one mapping on the device at a time, an extent's or the store's own.
// It never reads or writes an extent's bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <unordered_map>

#include "storage/store/thread/shared.h"
#include "storage/store/workers.h"

namespace kvtier::storage {

// The numbers of the device's buffers that are in use.
class BufferNumbers {
 public:
  BufferId first_free() const {
    std::uint32_t id = 0;
    while (used_.contains(id)) ++id;
    return BufferId(id);
  }
  // False: it is in use.
  bool take(BufferId id) { return used_.insert(id.value).second; }
  void give_back(BufferId id) { used_.erase(id.value); }

 private:
  std::set<std::uint32_t> used_;
};

class RingExtents {
 public:
  // Both outlive it; `workers` may be made after it.
  RingExtents(StoreShared& shared, Workers& workers) : shared_(shared), workers_(workers) {}

  void add(const RegisterCommand& command);
  void populated(const PopulatedCommand& command);
  void forget(ForgetCommand&& command);
  bool is_populating() const noexcept { return populating_ > 0; }

  // False: it is not registered.
  bool hold(ExtentId extent);
  // Without effect on one that is not registered.
  void release(ExtentId extent);

  // Between a slot of a registered extent and a place on disk. Errors: invalid (does not fit).
  Result<BlockDevice::Transfer> transfer(ExtentId extent, std::uint32_t slot,
                                         std::uint64_t record_bytes, DiskLocation at,
                                         std::uint64_t slot_bytes) const;
  std::span<std::byte> record(ExtentId extent, std::uint32_t slot, std::uint64_t bytes) const;

  // A record held on disk and did not in this extent: the device holds its pages no more.
  void note_memory_fault(ExtentId extent);

  BufferNumbers& numbers() noexcept { return numbers_; }

 private:
  struct State {
    BufferId buffer;
    std::span<std::byte> memory;
    std::uint64_t slot_bytes = 0;
    std::uint64_t pending = 0;        // reads and writes taken and not done; its populating
    std::function<void()> forgotten;  // told when none is pending
    bool at_fault = false;            // see note_memory_fault()
  };

  void populate_next(ExtentId extent, State& state, std::size_t from);

  StoreShared& shared_;
  Workers& workers_;
  std::unordered_map<ExtentId, State> extents_;
  BufferNumbers numbers_;
  std::uint32_t populating_ = 0;
};

Error not_registered(ExtentId extent);

}  // namespace kvtier::storage
