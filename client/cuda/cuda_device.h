// Small owners of what the CUDA runtime gives, for one device.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "core/base/check.h"
#include "kvtier/client.h"

namespace kvtier::transfer {

// "what: cudaErrorX (text)".
inline Error cuda_error(const std::string& what, cudaError_t code) {
  const Errc kind = code == cudaErrorMemoryAllocation ? Errc::no_space : Errc::io;
  return make_error(kind,
                    what + ": " + cudaGetErrorName(code) + " (" + cudaGetErrorString(code) + ")");
}

// Makes a device this thread's current one for a scope. A stream capture elsewhere in the process
// is not disturbed by what the scope calls, nor forbids it.
class OnDevice {
 public:
  explicit OnDevice(int device) noexcept {
    cudaGetDevice(&before_);
    if (before_ != device) cudaSetDevice(device);
    changed_ = before_ != device;
    cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  ~OnDevice() {
    cudaThreadExchangeStreamCaptureMode(&mode_);
    if (changed_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

enum class StreamPriority { first, last };

class CudaStream {
 public:
  CudaStream() = default;
  CudaStream(CudaStream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  CudaStream& operator=(CudaStream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~CudaStream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  // Of the current device; ordered with no other stream. Errors: io.
  static Result<CudaStream> make(StreamPriority priority) {
    int last = 0;
    int first = 0;
    CudaStream made;
    cudaError_t code = cudaDeviceGetStreamPriorityRange(&last, &first);
    if (code == cudaSuccess) {
      code = cudaStreamCreateWithPriority(&made.stream_, cudaStreamNonBlocking,
                                          priority == StreamPriority::first ? first : last);
    }
    if (code != cudaSuccess) return cuda_error("cannot make a CUDA stream", code);
    return made;
  }
  cudaStream_t get() const noexcept { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// The engine's stream; null is the default one.
inline cudaStream_t cuda_stream(Stream stream) noexcept {
  return static_cast<cudaStream_t>(stream.handle);
}

}  // namespace kvtier::transfer
