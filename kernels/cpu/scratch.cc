#include <array>
#include <memory>
#include <new>

#include "kernels/cpu/support.h"

namespace kvtier::kernels {
namespace {

constexpr std::align_val_t kAlignment{64};

struct AlignedDelete {
  void operator()(std::byte* bytes) const noexcept { ::operator delete[](bytes, kAlignment); }
};

struct Buffer {
  std::unique_ptr<std::byte[], AlignedDelete> bytes;
  std::size_t size = 0;
};

}  // namespace

void* scratch(ScratchSlot slot, std::size_t bytes) {
  thread_local std::array<Buffer, 2> buffers;
  Buffer& buffer = buffers[static_cast<std::size_t>(slot)];
  if (buffer.size < bytes) {
    buffer.bytes.reset(static_cast<std::byte*>(::operator new[](bytes, kAlignment)));
    buffer.size = bytes;
  }
  return buffer.bytes.get();
}

}  // namespace kvtier::kernels
