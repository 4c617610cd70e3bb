// Small owners of what the CUDA runtime gives, for one device.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "core/base/check.h"
#include "kernels/cuda/stream.h"
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

// Errors: io.
inline Result<kernels::cuda::Stream> make_stream(kernels::cuda::Stream::Priority priority) {
  try {
    return kernels::cuda::Stream(priority);
  } catch (const kernels::cuda::CudaError& error) {
    return cuda_error("cannot make a CUDA stream", error.code());
  }
}

}  // namespace kvtier::transfer
