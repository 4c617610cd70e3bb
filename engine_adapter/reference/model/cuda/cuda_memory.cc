#include "engine_adapter/reference/model/cuda/cuda_memory.h"

#include <string>

#include "kernels/cuda/error.h"

namespace kvtier::engine::cuda {

void use_device(std::uint32_t device) {
  kernels::cuda::check(cudaSetDevice(static_cast<int>(device)), "cudaSetDevice");
}

Result<std::byte*> CudaMemory::allocate(std::size_t bytes) {
  use_device(device_);
  void* at = nullptr;
  if (const cudaError_t code = cudaMalloc(&at, bytes); code != cudaSuccess) {
    (void)cudaGetLastError();  // it is told here, and not held against the next call
    return make_error(Errc::no_space, std::to_string(bytes) + " bytes on GPU " +
                                          std::to_string(device_) + ": " +
                                          cudaGetErrorString(code));
  }
  kernels::cuda::check(cudaMemset(at, 0, bytes), "cudaMemset");
  // The null stream does not wait for the engine's, nor theirs for it.
  kernels::cuda::check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  return static_cast<std::byte*>(at);
}

void CudaMemory::copy(std::byte* to, const std::byte* from, std::size_t bytes, StreamView stream) {
  use_device(device_);
  kernels::cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.get()),
                       "cudaMemcpyAsync");
}

void CudaMemory::read(std::byte* host, const std::byte* from, std::size_t bytes,
                      StreamView stream) {
  use_device(device_);
  const auto on = stream.get();
  kernels::cuda::check(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, on),
                       "cudaMemcpyAsync");
  kernels::cuda::check(cudaStreamSynchronize(on), "cudaStreamSynchronize");
}

void CudaMemory::write(std::byte* to, const std::byte* host, std::size_t bytes, StreamView stream) {
  use_device(device_);
  const auto on = stream.get();
  kernels::cuda::check(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, on),
                       "cudaMemcpyAsync");
  kernels::cuda::check(cudaStreamSynchronize(on), "cudaStreamSynchronize");
}

void CudaMemory::free(std::byte* at, std::size_t) noexcept {
  cudaFree(at);
}

}  // namespace kvtier::engine::cuda
