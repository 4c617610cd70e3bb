// The CUDA driver as far as memory shared between processes needs it, found at run time: programs
// that use this link and run on hosts without it. None of it needs a context but map().
//
// One instance a process, made once and never unloaded; any thread may call it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/base/fd.h"
#include "kvtier/result.h"

namespace kvtier {

// A GPU whatever its number in a process is.
using GpuUuid = std::array<std::byte, 16>;
// As nvidia-smi writes it: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx.
std::string to_string(const GpuUuid& uuid);

class CudaDriver {
 public:
  // The process's one. Errors: unavailable (no driver, an old one, or one that fails to start),
  // saying what to do.
  static Result<const CudaDriver*> get();
  // The same from a library of another name, for tests.
  static Result<CudaDriver> load(const char* library);

  CudaDriver(CudaDriver&&) = default;

  struct Device {
    int number = 0;  // as the driver counts in this process
    GpuUuid uuid{};
    std::string name;
    std::uint64_t memory_bytes = 0;
    bool shares_memory = false;  // virtual memory that can be exported as a descriptor
  };
  // Errors: unavailable.
  Result<int> devices() const;
  // Errors: invalid (no such number), io.
  Result<Device> device(int number) const;

  // What sizes of memory must be multiples of. Errors: io.
  Result<std::uint64_t> granularity(int device) const;
  // `bytes` of zeroed memory of a GPU, which lives as long as somebody holds the descriptor or maps
  // it. Errors: no_space, io.
  Result<UniqueFd> create(int device, std::uint64_t bytes) const;
  // The number of the GPU whose memory `fd` is. Errors: corrupt (not such memory).
  Result<int> owner(int fd) const;

  // Maps it in the current context, readable and writable by `device`. Undone by unmap(). Errors:
  // io, no_space.
  Result<std::span<std::byte>> map(int fd, std::uint64_t bytes, int device) const;
  // No work on the GPU may use it any more.
  void unmap(std::span<std::byte> memory) const noexcept;

 private:
  struct Functions;
  CudaDriver() = default;
  Error failed(const std::string& what, int code) const;

  const Functions* f_ = nullptr;  // lives as long as the process, as the library does
};

}  // namespace kvtier
