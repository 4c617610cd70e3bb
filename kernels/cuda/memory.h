// Owners of memory that a GPU works on. Copies here wait; they are for setting up and looking at
// results, not for an engine's path.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "kernels/cuda/error.h"

namespace kvtier::kernels::cuda {

// `count` elements in the memory of the current device. Move only.
template <typename T>
class DeviceArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  DeviceArray() = default;
  // Throws CudaError where there is no room.
  explicit DeviceArray(std::size_t count) : count_(count) {
    if (count != 0) check(cudaMalloc(&data_, bytes()), "cudaMalloc");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    upload(values);
  }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~DeviceArray() { cudaFree(data_); }

  T* get() const noexcept { return static_cast<T*>(data_); }
  std::size_t size() const noexcept { return count_; }
  std::size_t bytes() const noexcept { return count_ * sizeof(T); }

  void upload(std::span<const T> values) {
    KVTIER_CHECK(values.size() == count_);
    check(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  std::vector<T> download() const {
    std::vector<T> values(count_);
    check(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }
  void fill_bytes(int byte) { check(cudaMemset(data_, byte, bytes()), "cudaMemset"); }

 private:
  void* data_ = nullptr;
  std::size_t count_ = 0;
};

// Host memory in a memfd, as the daemon's extents are, pinned and mapped for the current device.
class PinnedMemfd {
 public:
  // Throws CudaError, or std::system_error where the system has no such memory.
  explicit PinnedMemfd(std::size_t bytes);
  ~PinnedMemfd();
  PinnedMemfd(const PinnedMemfd&) = delete;
  PinnedMemfd& operator=(const PinnedMemfd&) = delete;

  std::byte* host() const noexcept { return host_; }
  std::byte* device() const noexcept { return device_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* host_ = nullptr;
  std::byte* device_ = nullptr;
  std::size_t bytes_;
};

}  // namespace kvtier::kernels::cuda
