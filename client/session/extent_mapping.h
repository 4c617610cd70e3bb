// Memory of a tier as the client maps it. A slot keeps its extent's mapping alive, so a copy never
// touches memory that has been unmapped, whatever happens to the connection.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "core/base/fd.h"
#include "kvtier/tier.h"

namespace kvtier::session {

struct ExtentMapping {
  Tier tier = Tier::host;
  std::uint64_t slot_bytes = 0;
  std::span<std::byte> bytes;
  bool read_only = false;
  bool on_gpu = false;  // `bytes` is memory of the client's GPU, which the CPU must not touch
  Mapping mapping;      // behind host memory
  // So many slots are pinned together, which one copy of the GPU's may take; 0: all.
  std::uint32_t pinned_together = 0;
  // Where the GPU finds it; null while it does not: host memory that is not pinned (yet).
  mutable std::atomic<std::byte*> gpu_bytes{nullptr};

  // Maps host memory. Errors: malformed (shape), io.
  static Result<std::unique_ptr<ExtentMapping>> map(
      const UniqueFd& fd, Tier tier, std::uint64_t bytes, std::uint64_t slot_bytes,
      Mapping::Access access = Mapping::Access::read_write);
  std::uint64_t slots() const noexcept { return bytes.size() / slot_bytes; }
};

// Whether slots of this size make sense in an extent of that size. Errors: malformed.
Result<void> check_shape(std::uint64_t bytes, std::uint64_t slot_bytes);
// Whether `fd` has at least `bytes` bytes: reading beyond them would be a SIGBUS. Errors:
// malformed, io.
Result<void> check_size(const UniqueFd& fd, std::uint64_t bytes);

struct SlotRef {
  std::uint64_t name = 0;  // as on the wire: extent << 32 | slot
  std::shared_ptr<const ExtentMapping> extent;

  explicit operator bool() const noexcept { return extent != nullptr; }
  bool on_gpu() const noexcept { return extent->on_gpu; }
  // Whether one copy of the GPU's may take both, if they lie side by side.
  bool copied_with(const SlotRef& other) const noexcept {
    if (extent != other.extent) return false;
    const std::uint32_t together = extent->pinned_together;
    return together == 0 || slot() / together == other.slot() / together;
  }
  std::span<std::byte> bytes() const noexcept {
    return extent->bytes.subspan(offset(), extent->slot_bytes);
  }
  // Null where the GPU cannot reach it.
  std::byte* gpu_address() const noexcept {
    std::byte* base = extent->gpu_bytes.load(std::memory_order_acquire);
    return base == nullptr ? nullptr : base + offset();
  }

 private:
  std::uint32_t slot() const noexcept { return static_cast<std::uint32_t>(name); }
  std::uint64_t offset() const noexcept { return slot() * extent->slot_bytes; }
};

}  // namespace kvtier::session
