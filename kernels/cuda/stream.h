// The owner of a stream. Whoever only launches on it has a StreamView (kvtier/stream.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "kernels/cuda/error.h"
#include "kvtier/stream.h"

namespace kvtier::kernels::cuda {

// Of the device that was current when it was made, and ordered with no other stream, not even the
// default one. Move only. Its destructor does not wait for what was launched on it.
class Stream {
 public:
  enum class Priority : std::uint8_t { normal, first, last };

  Stream() noexcept = default;  // none
  // Throws CudaError.
  explicit Stream(Priority priority) {
    int last = 0;
    int first = 0;
    check(cudaDeviceGetStreamPriorityRange(&last, &first), "cudaDeviceGetStreamPriorityRange");
    const int number = priority == Priority::first ? first : priority == Priority::last ? last : 0;
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, number),
          "cudaStreamCreateWithPriority");
  }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  StreamView view() const& noexcept { return StreamView(stream_); }
  StreamView view() const&& = delete;  // it would outlive its stream
  cudaStream_t get() const& noexcept { return stream_; }
  cudaStream_t get() const&& = delete;

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace kvtier::kernels::cuda
