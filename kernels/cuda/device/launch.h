// How kernels are launched: more than 48 KiB of shared memory, and kernels that may begin while the
// one before them ends.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/error.h"
#include "kernels/cuda/kernels.h"

namespace kvtier::kernels::cuda::device {

template <typename... Params>
void allow_shared_memory(void (*kernel)(Params...), int bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "shared memory of a kernel");
}

// The compute capability of the current device, as 10 * major + minor.
inline int compute_capability() {
  int device = 0;
  int major = 0;
  int minor = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "capability");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "capability");
  return major * 10 + minor;
}

// The kernel, which waits for it (wait_for_previous_kernel), begins once the one before it on the
// stream has released it, or has ended (device/ptx.cuh: release_dependent_kernel,
// wait_for_previous_kernel).
struct LaunchShape {
  dim3 grid;
  unsigned threads = 0;
  std::size_t shared_bytes = 0;
};
template <typename... Params, typename... Args>
void launch_dependent(void (*kernel)(Params...), const LaunchShape& shape, StreamView stream,
                      const Args&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream.get();
  config.attrs = &attribute;
  config.numAttrs = compute_capability() >= 90 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, args...), "launch of a dependent kernel");
}

}  // namespace kvtier::kernels::cuda::device
