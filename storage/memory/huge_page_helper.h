// A process of its own that gives memory huge pages.
//
// The kernel holds the address space of whoever asks for them, for seconds where processors are
// busy, and every thread that maps memory or meets a new page waits: so it is not the daemon's.
#pragma once

#include <cstdint>

#include "core/base/fd.h"

namespace kvtier::storage {

class HugePageHelper {
 public:
  // Forks. Where that fails, nothing gets huge pages and all goes on.
  HugePageHelper();
  // The process ends by itself, as it does when this one is killed: at the end of the piece that it
  // is at.
  ~HugePageHelper() = default;
  HugePageHelper(const HugePageHelper&) = delete;
  HugePageHelper& operator=(const HugePageHelper&) = delete;

  // The memory of the memfd, `bytes` long, gets its pages in the background, huge ones where the
  // kernel can, after what was given before; what it holds, and who uses it meanwhile, does not
  // matter. Beyond kQueuedMax it gets none. Waits for nothing.
  void give(int memory, std::uint64_t bytes) noexcept;
  // Nothing of what was given is wanted any more; what is under way ends with its piece.
  void stop() noexcept { give(-1, 0); }
  static constexpr std::size_t kQueuedMax = 64;
  // Of the give() calls, how many were carried out to the end.
  std::uint64_t finished() const noexcept;

 private:
  UniqueFd socket_;
  Mapping shared_;  // the count of those finished
};

}  // namespace kvtier::storage
