// What the daemon must know again after a restart beside its extents: the numbers that it has given
// to extents, and the encodings of the namespaces of what is only in memory. A memfd, written by
// the control thread alone and anew at each start (docs/format.md).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "core/base/fd.h"
#include "daemon/cache/loans/reservations.h"
#include "kvtier/key.h"

namespace kvtier::daemon {

// Random; two daemons have the same one if the later got the extents of the earlier. Within it an
// extent's id never means another extent.
using Lineage = std::array<std::byte, 16>;

class KeptState {
 public:
  // What a state left by an earlier daemon says.
  struct Left {
    std::uint64_t generation = 0;
    Lineage lineage{};
    std::uint32_t next_extent = 1;
    ProcessId daemon;
    std::map<NamespaceId, std::vector<std::byte>> encodings;
  };
  // Errors: corrupt (not such a state, not whole, of another boot of the host), version, io.
  static Result<Left> read(const UniqueFd& fd);

  // A state of this process that goes on from `left`, but with no namespaces. Errors: io, no_space.
  static Result<KeptState> create(const Left& left);

  int fd() const noexcept { return fd_.get(); }
  std::uint64_t generation() const noexcept;
  const Lineage& lineage() const noexcept;

  // An extent's own number, never given before.
  std::uint32_t next_extent() noexcept;
  // False where there is no room for it.
  bool remember(std::span<const std::byte> encoded) noexcept;
  // From now on read() takes it.
  void set_complete() noexcept;

 private:
  struct Header;
  struct Record;
  KeptState(UniqueFd fd, Mapping mapping) : fd_(std::move(fd)), mapping_(std::move(mapping)) {}
  Header& header() const noexcept;

  UniqueFd fd_;
  Mapping mapping_;
};

}  // namespace kvtier::daemon
