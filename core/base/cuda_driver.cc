#include "core/base/cuda_driver.h"

#include <dlfcn.h>
#include <fcntl.h>

#include <cstdio>
#include <cstring>

#include "core/base/check.h"
#include "core/base/cuda_driver_abi.h"

namespace kvtier {

using namespace cuda_abi;

struct CudaDriver::Functions {
  Status (*init)(unsigned flags);
  Status (*error_name)(Status, const char**);
  Status (*error_string)(Status, const char**);
  Status (*device_count)(int*);
  Status (*device_get)(DeviceHandle*, int number);
  Status (*device_uuid)(Uuid*, DeviceHandle);
  Status (*device_name)(char*, int bytes, DeviceHandle);
  Status (*device_memory)(std::size_t*, DeviceHandle);
  Status (*device_attribute)(int*, int attribute, DeviceHandle);
  Status (*granularity)(std::size_t*, const AllocationProp*, int which);
  Status (*create)(AllocationHandle*, std::size_t bytes, const AllocationProp*,
                   unsigned long long flags);
  Status (*release)(AllocationHandle);
  Status (*export_fd)(void* fd, AllocationHandle, int type, unsigned long long flags);
  Status (*import_fd)(AllocationHandle*, void* fd, int type);
  Status (*properties)(AllocationProp*, AllocationHandle);
  Status (*reserve)(Address*, std::size_t bytes, std::size_t alignment, Address wanted,
                    unsigned long long flags);
  Status (*unreserve)(Address, std::size_t bytes);
  Status (*map)(Address, std::size_t bytes, std::size_t offset, AllocationHandle,
                unsigned long long flags);
  Status (*unmap)(Address, std::size_t bytes);
  Status (*set_access)(Address, std::size_t bytes, const AccessDesc*, std::size_t count);
};

namespace {

AllocationProp shareable(int device) {
  AllocationProp prop{};
  prop.type = kPinned;
  prop.handle_types = kPosixDescriptor;
  prop.location = {kLocationDevice, device};
  return prop;
}

// `name` of the library, cast to what it is; false if it has none.
template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

}  // namespace

std::string to_string(const GpuUuid& uuid) {
  std::string text = "GPU-";
  char digits[3];
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    std::snprintf(digits, sizeof digits, "%02x", std::to_integer<unsigned>(uuid[i]));
    text += digits;
  }
  return text;
}

Result<CudaDriver> CudaDriver::load(const char* library) {
  void* handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return make_error(Errc::unavailable,
                      std::string("no CUDA driver here: ") + ::dlerror() +
                          "; install the NVIDIA driver, or give this container access to the GPU");
  }
  auto* f = new Functions{};
  const bool complete =
      find(handle, "cuInit", f->init) && find(handle, "cuGetErrorName", f->error_name) &&
      find(handle, "cuGetErrorString", f->error_string) &&
      find(handle, "cuDeviceGetCount", f->device_count) &&
      find(handle, "cuDeviceGet", f->device_get) &&
      find(handle, "cuDeviceGetUuid_v2", f->device_uuid) &&
      find(handle, "cuDeviceGetName", f->device_name) &&
      find(handle, "cuDeviceTotalMem_v2", f->device_memory) &&
      find(handle, "cuDeviceGetAttribute", f->device_attribute) &&
      find(handle, "cuMemGetAllocationGranularity", f->granularity) &&
      find(handle, "cuMemCreate", f->create) && find(handle, "cuMemRelease", f->release) &&
      find(handle, "cuMemExportToShareableHandle", f->export_fd) &&
      find(handle, "cuMemImportFromShareableHandle", f->import_fd) &&
      find(handle, "cuMemGetAllocationPropertiesFromHandle", f->properties) &&
      find(handle, "cuMemAddressReserve", f->reserve) &&
      find(handle, "cuMemAddressFree", f->unreserve) && find(handle, "cuMemMap", f->map) &&
      find(handle, "cuMemUnmap", f->unmap) && find(handle, "cuMemSetAccess", f->set_access);
  if (!complete) {
    delete f;
    ::dlclose(handle);
    return make_error(Errc::unavailable, std::string(library) +
                                             " lacks functions that kvtier needs; install an "
                                             "NVIDIA driver of CUDA 12 or later");
  }
  CudaDriver driver;
  driver.f_ = f;
  if (const Status code = f->init(0); code != kSuccess) {
    const Error error = driver.failed("the CUDA driver does not start", code);
    delete f;
    return make_error(Errc::unavailable,
                      error.message + "; does nvidia-smi work here, as this user?");
  }
  return driver;
}

Result<const CudaDriver*> CudaDriver::get() {
  static const Result<CudaDriver> driver = load("libcuda.so.1");
  if (!driver) return driver.error();
  return &*driver;
}

Error CudaDriver::failed(const std::string& what, int code) const {
  const char* name = nullptr;
  const char* text = nullptr;
  f_->error_name(code, &name);
  f_->error_string(code, &text);
  return make_error(code == kOutOfMemory ? Errc::no_space : Errc::io,
                    what + ": " + (name != nullptr ? name : std::to_string(code)) +
                        (text != nullptr ? std::string(" (") + text + ")" : ""));
}

Result<int> CudaDriver::devices() const {
  int count = 0;
  if (const Status code = f_->device_count(&count); code != kSuccess) {
    return make_error(Errc::unavailable, failed("no GPU can be counted", code).message);
  }
  return count;
}

Result<CudaDriver::Device> CudaDriver::device(int number) const {
  const auto count = devices();
  if (!count) return count.error();
  if (number < 0 || number >= *count) {
    return make_error(Errc::invalid,
                      "there is no GPU " + std::to_string(number) + ": the driver shows " +
                          (*count == 0   ? std::string("none")
                           : *count == 1 ? std::string("one, number 0")
                                         : std::to_string(*count) + ", numbers 0 to " +
                                               std::to_string(*count - 1)));
  }
  DeviceHandle handle = 0;
  Uuid uuid{};
  char name[128] = {};
  std::size_t bytes = 0;
  int mapped = 0;
  int exported = 0;
  Status code = f_->device_get(&handle, number);
  if (code == kSuccess) code = f_->device_uuid(&uuid, handle);
  if (code == kSuccess) code = f_->device_name(name, sizeof name - 1, handle);
  if (code == kSuccess) code = f_->device_memory(&bytes, handle);
  if (code == kSuccess) code = f_->device_attribute(&mapped, kVirtualMemorySupported, handle);
  if (code == kSuccess) code = f_->device_attribute(&exported, kDescriptorSupported, handle);
  if (code != kSuccess) return failed("GPU " + std::to_string(number) + " does not answer", code);
  Device device;
  device.number = number;
  std::memcpy(device.uuid.data(), uuid.bytes, sizeof uuid.bytes);
  device.name = name;
  device.memory_bytes = bytes;
  device.shares_memory = mapped != 0 && exported != 0;
  return device;
}

Result<std::uint64_t> CudaDriver::granularity(int device) const {
  const AllocationProp prop = shareable(device);
  std::size_t bytes = 0;
  if (const Status code = f_->granularity(&bytes, &prop, kRecommended); code != kSuccess) {
    return failed("the granularity of GPU memory", code);
  }
  return bytes;
}

Result<UniqueFd> CudaDriver::create(int device, std::uint64_t bytes) const {
  const AllocationProp prop = shareable(device);
  AllocationHandle handle = 0;
  if (const Status code = f_->create(&handle, bytes, &prop, 0); code != kSuccess) {
    return failed("cannot take " + std::to_string(bytes) + " bytes of GPU " +
                      std::to_string(device) + "'s memory",
                  code);
  }
  int fd = -1;
  const Status code = f_->export_fd(&fd, handle, kPosixDescriptor, 0);
  // From here on the descriptor holds the memory.
  f_->release(handle);
  if (code != kSuccess) return failed("cannot export GPU memory as a descriptor", code);
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    const Error error = errno_error(Errc::io, "a descriptor of GPU memory");
    ::close(fd);
    return error;
  }
  return UniqueFd(fd);
}

Result<int> CudaDriver::owner(int fd) const {
  AllocationHandle handle = 0;
  Status code = f_->import_fd(&handle, as_pointer(fd), kPosixDescriptor);
  if (code != kSuccess) {
    return make_error(Errc::corrupt, failed("the descriptor is of no GPU memory", code).message);
  }
  AllocationProp prop{};
  code = f_->properties(&prop, handle);
  f_->release(handle);
  if (code != kSuccess || prop.location.type != kLocationDevice) {
    return make_error(Errc::corrupt,
                      failed("the descriptor is of memory that is on no GPU", code).message);
  }
  return prop.location.id;
}

Result<std::span<std::byte>> CudaDriver::map(int fd, std::uint64_t bytes, int device) const {
  AllocationHandle handle = 0;
  if (const Status code = f_->import_fd(&handle, as_pointer(fd), kPosixDescriptor);
      code != kSuccess) {
    return failed("cannot import GPU memory", code);
  }
  Address at = 0;
  Status code = f_->reserve(&at, bytes, 0, 0, 0);
  const bool reserved = code == kSuccess;
  if (reserved) code = f_->map(at, bytes, 0, handle, 0);
  const bool mapped = reserved && code == kSuccess;
  // The mapping holds the memory.
  f_->release(handle);
  const AccessDesc access{{kLocationDevice, device}, kReadWrite};
  if (mapped) code = f_->set_access(at, bytes, &access, 1);
  if (code != kSuccess) {
    if (mapped) f_->unmap(at, bytes);
    if (reserved) f_->unreserve(at, bytes);
    return failed("cannot map " + std::to_string(bytes) + " bytes of GPU memory", code);
  }
  return std::span(reinterpret_cast<std::byte*>(at), bytes);
}

void CudaDriver::unmap(std::span<std::byte> memory) const noexcept {
  const auto at = reinterpret_cast<Address>(memory.data());
  f_->unmap(at, memory.size());
  f_->unreserve(at, memory.size());
}

}  // namespace kvtier
