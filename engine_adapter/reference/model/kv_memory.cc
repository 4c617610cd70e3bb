#include "engine_adapter/reference/model/kv_memory.h"

#include <sys/mman.h>

#include <cstring>
#include <string>

#include "core/base/fd.h"

namespace kvtier::engine {
namespace {

class HostMemory : public KvMemory {
 public:
  Result<std::byte*> allocate(std::size_t bytes) override {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
      return errno_error(Errc::no_space, std::to_string(bytes) + " bytes for KV");
    }
    return static_cast<std::byte*>(at);
  }
  void free(std::byte* at, std::size_t bytes) noexcept override { ::munmap(at, bytes); }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes, StreamView) override {
    std::memcpy(to, from, bytes);
  }
  void read(std::byte* host, const std::byte* from, std::size_t bytes, StreamView) override {
    std::memcpy(host, from, bytes);
  }
  void write(std::byte* to, const std::byte* host, std::size_t bytes, StreamView) override {
    std::memcpy(to, host, bytes);
  }
  DType exact_type() const noexcept override { return DType::f32; }
};

}  // namespace

KvMemory& host_memory() noexcept {
  static HostMemory memory;
  return memory;
}

}  // namespace kvtier::engine
