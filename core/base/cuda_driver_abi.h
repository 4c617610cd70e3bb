// The part of the CUDA driver's binary interface that core/base/cuda_driver.cc speaks, so that it
// builds where no CUDA toolkit is. Checked against cuda.h where there is one
// (tests/gpu/driver_abi_test.cc).
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtier::cuda_abi {

using Status = int;        // CUresult
using DeviceHandle = int;  // CUdevice
using AllocationHandle = unsigned long long;
using Address = std::uintptr_t;  // CUdeviceptr, 64 bits

inline constexpr Status kSuccess = 0;
inline constexpr Status kOutOfMemory = 2;
inline constexpr int kVirtualMemorySupported = 102;  // CUdevice_attribute
inline constexpr int kDescriptorSupported = 103;
inline constexpr int kPinned = 1;           // CUmemAllocationType
inline constexpr int kPosixDescriptor = 1;  // CUmemAllocationHandleType
inline constexpr int kLocationDevice = 1;   // CUmemLocationType
inline constexpr int kRecommended = 1;      // CUmemAllocationGranularity_flags
inline constexpr int kReadWrite = 3;        // CUmemAccess_flags

struct Uuid {
  char bytes[16];
};
struct Location {
  int type;
  int id;
};
struct AllocationProp {
  int type;
  int handle_types;
  Location location;
  void* win32_meta_data;
  struct {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
struct AccessDesc {
  Location location;
  int flags;
};
static_assert(sizeof(Address) == 8 && sizeof(AllocationProp) == 32 && sizeof(AccessDesc) == 12);

// How a descriptor is handed over.
inline void* as_pointer(int fd) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd));
}

}  // namespace kvtier::cuda_abi
