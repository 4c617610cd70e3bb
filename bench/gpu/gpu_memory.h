// Device memory and times for the GPU benchmarks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "kernels/cuda/error.h"
#include "kernels/cuda/stream.h"

namespace kvtier::bench {

class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) : bytes_(bytes) {
    kernels::cuda::check(cudaMalloc(&memory_, bytes), "cudaMalloc");
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { cudaFree(memory_); }

  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_;
};

// Normal BF16 numbers all over; also plausible as FP8 codes.
void fill_with_numbers(const DeviceMemory& memory);

template <typename T>
void upload(const DeviceMemory& memory, const std::vector<T>& values) {
  kernels::cuda::check(
      cudaMemcpy(memory.as<T>(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
      "upload");
}

// Median seconds of `work`, launched as one captured graph, over `rounds` runs after one.
double graph_seconds(const std::function<void(StreamView)>& work, int rounds);

// Bytes read and written a second by a copy from device memory to device memory.
double copy_bandwidth();

}  // namespace kvtier::bench
