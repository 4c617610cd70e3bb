// What the CUDA runtime refused. Thrown where a programming error or a dead device is the only
// explanation; running out of memory is a Result where memory is asked for.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace kvtier::kernels::cuda {

class CudaError : public std::runtime_error {
 public:
  CudaError(const char* what, cudaError_t code)
      : std::runtime_error(std::string(what) + ": " + cudaGetErrorName(code) + ": " +
                           cudaGetErrorString(code)),
        code_(code) {}
  cudaError_t code() const noexcept { return code_; }

 private:
  cudaError_t code_;
};

inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw CudaError(what, code);
}

// After a launch.
inline void check_launch(const char* kernel) {
  check(cudaGetLastError(), kernel);
}

}  // namespace kvtier::kernels::cuda
