#include "client/cuda/cuda_pools.h"

#include <bit>

#include "client/cuda/cuda_device.h"

namespace kvtier::transfer {
namespace {

void free_memory(CudaPools::Kind kind, void* data) noexcept {
  if (kind == CudaPools::Kind::host) {
    cudaFreeHost(data);
  } else {
    cudaFree(data);
  }
}

}  // namespace

CudaPools::~CudaPools() {
  const OnDevice on(device_);
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  for (const Kind kind : {Kind::host, Kind::device}) {
    for (const auto& same_size : free_[static_cast<std::size_t>(kind)]) {
      for (void* data : same_size) free_memory(kind, data);
    }
  }
}

Result<CudaPools::Event> CudaPools::event() {
  Event event;
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      event.event_ = events_.back();
      events_.pop_back();
    }
  }
  if (event.event_ == nullptr) {
    const cudaError_t code = cudaEventCreateWithFlags(&event.event_, cudaEventDisableTiming);
    if (code != cudaSuccess) return cuda_error("cannot make a CUDA event", code);
  }
  event.pools_ = shared_from_this();
  return event;
}

Result<CudaPools::Memory> CudaPools::memory(Kind kind, std::size_t bytes) {
  Memory memory;
  memory.kind_ = kind;
  const auto log2 = static_cast<std::size_t>(std::bit_width(std::max<std::size_t>(bytes, 1) - 1));
  memory.size_class_ = std::max(log2, kSmallest) - kSmallest;
  if (memory.size_class_ >= kClasses) {
    return make_error(Errc::no_space, "staging memory of " + std::to_string(bytes) + " bytes");
  }
  void* data = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& free = free_[static_cast<std::size_t>(kind)][memory.size_class_];
    if (!free.empty()) {
      data = free.back();
      free.pop_back();
    }
  }
  if (data == nullptr) {
    const std::size_t size = std::size_t{1} << (memory.size_class_ + kSmallest);
    const cudaError_t code = kind == Kind::host ? cudaHostAlloc(&data, size, cudaHostAllocPortable)
                                                : cudaMalloc(&data, size);
    if (code != cudaSuccess) {
      cudaGetLastError();  // what is reported here is not to be found by somebody else
      return cuda_error("cannot take staging memory of " + std::to_string(size) + " bytes", code);
    }
  }
  memory.data_ = static_cast<std::byte*>(data);
  memory.pools_ = shared_from_this();
  return memory;
}

CudaPools::Event& CudaPools::Event::operator=(Event&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  pools_ = std::move(other.pools_);
  event_ = other.event_;
  return *this;
}

void CudaPools::Event::give_back() noexcept {
  if (!pools_) return;
  {
    const std::lock_guard lock(pools_->mutex_);
    pools_->events_.push_back(event_);
  }
  pools_.reset();
}

CudaPools::Memory& CudaPools::Memory::operator=(Memory&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  pools_ = std::move(other.pools_);
  data_ = other.data_;
  kind_ = other.kind_;
  size_class_ = other.size_class_;
  return *this;
}

void CudaPools::Memory::give_back() noexcept {
  if (!pools_) return;
  {
    const std::lock_guard lock(pools_->mutex_);
    pools_->free_[static_cast<std::size_t>(kind_)][size_class_].push_back(data_);
  }
  pools_.reset();
}

}  // namespace kvtier::transfer
