#include "kernels/cuda/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace kvtier::kernels::cuda {

PinnedMemfd::PinnedMemfd(std::size_t bytes) : bytes_(bytes) {
  const int fd = memfd_create("kvtier-pinned", MFD_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  void* mapped = MAP_FAILED;
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0) {
    mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  }
  const int error = errno;
  close(fd);
  if (mapped == MAP_FAILED) {
    throw std::system_error(error, std::generic_category(), "mapping a memfd");
  }
  host_ = static_cast<std::byte*>(mapped);
  cudaError_t code = cudaHostRegister(host_, bytes, cudaHostRegisterMapped);
  if (code == cudaSuccess) {
    void* device = nullptr;
    code = cudaHostGetDevicePointer(&device, host_, 0);
    device_ = static_cast<std::byte*>(device);
    if (code != cudaSuccess) cudaHostUnregister(host_);
  }
  if (code != cudaSuccess) munmap(host_, bytes);
  check(code, "cudaHostRegister");
}

PinnedMemfd::~PinnedMemfd() {
  cudaHostUnregister(host_);
  munmap(host_, bytes_);
}

}  // namespace kvtier::kernels::cuda
