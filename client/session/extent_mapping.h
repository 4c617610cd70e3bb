// Memory of a tier as the client maps it. A slot keeps its extent's mapping alive, so a copy never
// touches memory that has been unmapped, whatever happens to the connection.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "client/base/fd.h"
#include "kvtier/tier.h"

namespace kvtier::session {

struct ExtentMapping {
  Tier tier = Tier::host;
  std::uint64_t slot_bytes = 0;
  Mapping mapping;

  // Errors: malformed (shape), io.
  static Result<std::shared_ptr<const ExtentMapping>> map(const UniqueFd& fd, Tier tier,
                                                          std::uint64_t bytes,
                                                          std::uint64_t slot_bytes);
  std::uint64_t slots() const noexcept { return mapping.bytes().size() / slot_bytes; }
};

// Whether `fd` has at least `bytes` bytes: reading beyond them would be a SIGBUS. Errors:
// malformed, io.
Result<void> check_size(const UniqueFd& fd, std::uint64_t bytes);

struct SlotRef {
  std::uint64_t name = 0;  // as on the wire: extent << 32 | slot
  std::shared_ptr<const ExtentMapping> extent;

  explicit operator bool() const noexcept { return extent != nullptr; }
  std::span<std::byte> bytes() const noexcept {
    const std::uint64_t index = name & 0xFFFFFFFF;
    return extent->mapping.bytes().subspan(index * extent->slot_bytes, extent->slot_bytes);
  }
};

}  // namespace kvtier::session
