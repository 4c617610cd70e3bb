// The daemon's extents as this process has them mapped, and what a slot's name leads to.
//
// Owned by the session, on its thread. It holds:
// - The mappings outlive a connection: those that the next daemon has too (the same lineage) are
//   kept with all that was done to have them (pages, pins, imports), the others are dropped. For a
//   while without a daemon all are kept.
// - What could not be mapped is known by name for this connection: its blocks are misses, all else
//   is there.
// - Once memory of the GPU could not be mapped, the next connection has no part in that tier.
// It never touches the bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "client/session/extent_mapping.h"
#include "client/session/gpu_memory.h"
#include "core/wire/frame.h"
#include "kvtier/deadline.h"

namespace kvtier::session {

class MappedExtents {
 public:
  // `gpu`: null for a client without one.
  explicit MappedExtents(std::shared_ptr<GpuMemory> gpu) : gpu_(std::move(gpu)) {}

  // Which are there, as which they are mapped, and whose GPU this is.
  void fill_hello(wire::Hello::Builder hello, bool read_only);
  // Errors: malformed.
  Result<void> take_welcome(wire::Welcome::Reader welcome);
  // Errors: malformed, io, no_space.
  Result<void> map(wire::Frame& frame, wire::Extent::Reader extent, Mapping::Access access);
  void forget(std::uint32_t extent);

  // Finds slots for records of one size. Neighbours are most often of one extent, which is looked
  // up once. Good until the next change of what is mapped.
  class Resolver {
   public:
    Resolver(const MappedExtents& extents, std::uint64_t record_bytes) noexcept
        : extents_(extents), record_bytes_(record_bytes) {}
    // None: it is in no extent that is mapped, or too small.
    SlotRef operator()(std::uint64_t name);

   private:
    const MappedExtents& extents_;
    const std::uint64_t record_bytes_;
    std::uint32_t id_ = 0;
    const std::shared_ptr<const ExtentMapping>* mapping_ = nullptr;  // of that id
  };
  bool lies_in_unmapped(std::uint64_t name) const {
    return unmapped_.contains(static_cast<std::uint32_t>(name >> 32));
  }

  // Without a connection.
  void keep_until(Clock::time_point time) noexcept { kept_until_ = time; }
  void drop_if_over(Clock::time_point now) {
    if (now >= kept_until_) clear();
  }
  void clear() { extents_.clear(); }

 private:
  Result<std::shared_ptr<const ExtentMapping>> mapping_of(wire::Frame& frame,
                                                          wire::Extent::Reader extent,
                                                          Mapping::Access access);

  const std::shared_ptr<GpuMemory> gpu_;
  bool gpu_tier_ = true;  // false: memory of the GPU could not be mapped, so we do without
  std::unordered_map<std::uint32_t, std::shared_ptr<const ExtentMapping>> extents_;
  std::unordered_set<std::uint32_t> unmapped_;
  std::vector<std::byte> lineage_;  // that gives their ids a meaning
  Clock::time_point kept_until_{};
};

}  // namespace kvtier::session
