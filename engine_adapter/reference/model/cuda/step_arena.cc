#include "engine_adapter/reference/model/cuda/step_arena.h"

#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/base/units.h"

namespace kvtier::engine::cuda {

using kernels::cuda::check;

StepArena::~StepArena() {
  release();
}

void StepArena::release() noexcept {
  for (Half& half : halves_) {
    if (half.sent != nullptr) {
      cudaEventSynchronize(half.sent);
      cudaEventDestroy(half.sent);
    }
    cudaFreeHost(half.host);
    half = {};
  }
}

bool StepArena::begin(std::size_t bytes) {
  turn_ = 1 - turn_;
  used_ = 0;
  if (bytes <= device_.size()) {
    check(cudaEventSynchronize(halves_[turn_].sent), "cudaEventSynchronize");
    return false;
  }
  release();
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // who still reads the old memory
  device_ = {};
  kernels::cuda::DeviceArray<std::byte> device(round_up(bytes * 3 / 2, kAlignment));
  for (Half& half : halves_) {
    void* at = nullptr;
    check(cudaMallocHost(&at, device.size()), "cudaMallocHost");
    half.host = static_cast<std::byte*>(at);
    check(cudaEventCreateWithFlags(&half.sent, cudaEventDisableTiming), "cudaEventCreate");
  }
  device_ = std::move(device);  // last: where memory was missing, the next step tries again
  return true;
}

Staged<std::byte> StepArena::take_bytes(std::size_t bytes) {
  const std::size_t at = used_;
  used_ = round_up(at + bytes, kAlignment);
  KVTIER_CHECK(used_ <= device_.size());
  std::byte* const host = halves_[turn_].host + at;
  std::memset(host, 0, bytes);
  return {{host, bytes}, device_.get() + at};
}

void StepArena::send(StreamView stream) {
  const Half& half = halves_[turn_];
  check(cudaMemcpyAsync(device_.get(), half.host, used_, cudaMemcpyHostToDevice, stream.get()),
        "cudaMemcpyAsync");
  check(cudaEventRecord(half.sent, stream.get()), "cudaEventRecord");
}

}  // namespace kvtier::engine::cuda
