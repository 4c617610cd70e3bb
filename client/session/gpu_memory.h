// What the session needs of the client's GPU: extents of the device tier mapped, and those of host
// memory pinned. Called on the session thread; what is returned may be dropped on any thread.
#pragma once

#include "client/session/extent_mapping.h"
#include "core/base/cuda_driver.h"

namespace kvtier::session {

class GpuMemory {
 public:
  virtual ~GpuMemory() = default;

  virtual const GpuUuid& uuid() const noexcept = 0;
  // Memory of this GPU that another process has exported. Errors: malformed (shape), io, no_space.
  virtual Result<std::shared_ptr<const ExtentMapping>> map(const UniqueFd& fd, std::uint64_t bytes,
                                                           std::uint64_t slot_bytes) = 0;
  // Has the extent pinned soon, in the background.
  virtual std::shared_ptr<const ExtentMapping> pin(std::unique_ptr<ExtentMapping> host) = 0;
};

}  // namespace kvtier::session
