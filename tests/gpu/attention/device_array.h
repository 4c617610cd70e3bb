// Memory of a GPU for tests: filled from a vector, read back into one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "kernels/cuda/error.h"

namespace kvtier::kernels::cuda {

template <typename T>
class DeviceArray {
 public:
  // Every byte `poison`; 0xFF is a NaN in every float format.
  explicit DeviceArray(std::size_t count, int poison = 0xFF) : count_(count) {
    check(cudaMalloc(&memory_, (count + 1) * sizeof(T)), "cudaMalloc");
    check(cudaMemset(memory_, poison, (count + 1) * sizeof(T)), "cudaMemset");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    check(cudaMemcpy(memory_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  DeviceArray(DeviceArray&& other) noexcept : memory_(other.memory_), count_(other.count_) {
    other.memory_ = nullptr;
  }
  DeviceArray& operator=(DeviceArray&&) = delete;
  ~DeviceArray() { cudaFree(memory_); }

  T* get() const { return static_cast<T*>(memory_); }
  std::size_t size() const { return count_; }

  std::vector<T> values() const {
    std::vector<T> result(count_);
    check(cudaMemcpy(result.data(), memory_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
          "download");
    return result;
  }

 private:
  void* memory_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace kvtier::kernels::cuda
