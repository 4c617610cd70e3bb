// The namespaces that a session has open, by the handles that its client knows them by.
//
// A handle is given once and stands for one namespace from then on, perhaps one that nobody has
// made yet: readers make none, so theirs waits until somebody else has (kNotKnown). Each namespace
// counts how often it is open; whoever opened it here is counted until close(). Owned by its
// session.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "daemon/cache/block_cache.h"

namespace kvtier::daemon {

class OpenNamespaces {
 public:
  static constexpr std::uint16_t kNotKnown = 0xFFFF;

  explicit OpenNamespaces(BlockCache& cache) : cache_(cache) {}
  OpenNamespaces(const OpenNamespaces&) = delete;

  // A new handle; `makes`: of a namespace that is made if it is not known. Errors: no_space (too
  // many in one session), and those of BlockCache::open_namespace().
  Result<std::uint32_t> open(std::span<const std::byte> encoded, bool makes, UserId user);
  // The number of the handle's namespace, or kNotKnown. Errors: malformed (no such handle).
  Result<std::uint16_t> number_of(std::uint32_t handle);
  // By handle.
  std::span<const std::uint16_t> numbers() const noexcept { return numbers_; }
  std::vector<std::uint32_t> handles_of(std::uint16_t ns) const;
  // The handles of what waits to be made and matches: whoever makes it now has other weights than
  // this reader. They wait no more.
  std::vector<std::uint32_t> close_awaited(const NamespaceFilter& filter);
  // The greatest record of any of them; 1 without one.
  std::uint64_t record_bytes_max() const;
  void close();

 private:
  BlockCache& cache_;
  std::vector<std::uint16_t> numbers_;
  std::map<std::uint32_t, std::vector<std::byte>> awaited_;  // their encodings, by handle
};

}  // namespace kvtier::daemon
