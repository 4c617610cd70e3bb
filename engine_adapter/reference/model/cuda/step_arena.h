// What a step's kernels read beside weights and KV: laid out in pinned host memory and brought to
// the GPU with one copy. Two halves take turns in host memory, so that a step can be planned while
// the last one's copy is still on its way.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <span>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/memory.h"

namespace kvtier::engine::cuda {

// The same elements here and there.
template <class T>
struct Staged {
  std::span<T> host;
  T* device = nullptr;
};

class StepArena {
 public:
  // Throws CudaError.
  StepArena() = default;
  ~StepArena();
  StepArena(const StepArena&) = delete;
  StepArena& operator=(const StepArena&) = delete;

  // Starts a step that takes at most `bytes`; waits until its half of the host memory is free.
  // What was taken before is gone. Returns whether the device's memory has moved. Throws CudaError
  // where there is no room; the next begin() tries again.
  bool begin(std::size_t bytes);
  // Zeros. The same calls since begin() give the same places on the device.
  template <class T>
  Staged<T> take(std::size_t count) {
    const Staged<std::byte> bytes = take_bytes(count * sizeof(T));
    return {{reinterpret_cast<T*>(bytes.host.data()), count}, reinterpret_cast<T*>(bytes.device)};
  }
  // The room that take<T>(count) needs at most.
  template <class T>
  static constexpr std::size_t room(std::size_t count) {
    return count * sizeof(T) + kAlignment;
  }
  void send(StreamView stream);

 private:
  static constexpr std::size_t kAlignment = 256;

  struct Half {
    std::byte* host = nullptr;
    cudaEvent_t sent = nullptr;
  };

  Staged<std::byte> take_bytes(std::size_t bytes);
  void release() noexcept;

  kernels::cuda::DeviceArray<std::byte> device_;
  std::array<Half, 2> halves_{};
  std::size_t turn_ = 0;
  std::size_t used_ = 0;
};

}  // namespace kvtier::engine::cuda
