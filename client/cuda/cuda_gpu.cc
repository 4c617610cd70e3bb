#include "client/cuda/cuda_gpu.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>

#include "client/cuda/cuda_load.h"
#include "client/cuda/cuda_write_back.h"
#include "core/base/fd.h"
#include "core/base/units.h"
#include "kernels/cuda/error.h"
#include "kernels/cuda/kernels.h"

namespace kvtier::transfer {

using session::ExtentMapping;

namespace {

// While CUDA pins memory, no kernel of the process can be launched: 49 ms for a GiB in one call.
// Between two pieces of this size an engine's launches get through, if they are given the time.
// Smaller ones would cut runs of records into more copies than the link's rate allows.
constexpr std::uint64_t kPinnedAtOnce = 64_MiB;

// Calls `visit` for each piece of the extent until it returns false: whole slots, since no copy may
// cross from one piece to the next.
template <class Visit>
void each_piece(const ExtentMapping& host, Visit&& visit) {
  const std::uint64_t piece = host.pinned_together * host.slot_bytes;
  for (std::uint64_t at = 0; at < host.bytes.size(); at += piece) {
    if (!visit(host.bytes.subspan(at, std::min(piece, host.bytes.size() - at)))) return;
  }
}

// The first `bytes` of it.
void unregister(const ExtentMapping& host, std::uint64_t bytes) {
  each_piece(host, [&](std::span<std::byte> piece) {
    if (piece.data() >= host.bytes.data() + bytes) return false;
    if (cudaHostUnregister(piece.data()) != cudaSuccess) cudaGetLastError();
    return true;
  });
}

// Host memory that was handed to pin(), on its way back to the system. Background thread.
void unpin(std::unique_ptr<ExtentMapping> host, int device) {
  const OnDevice on(device);
  if (host->gpu_bytes.load() != nullptr) unregister(*host, host->bytes.size());
}

// Once no work that was launched can still be at it: the GPU would fault, and the engine with it.
void unmap(std::unique_ptr<ExtentMapping> memory, int device, const CudaDriver& driver) {
  const OnDevice on(device);
  cudaDeviceSynchronize();
  driver.unmap(memory->bytes);
}

// Where the GPU finds a piece; null if it cannot be pinned.
std::byte* register_piece(std::span<std::byte> piece, unsigned flags) {
  void* address = nullptr;
  cudaError_t code = cudaHostRegister(piece.data(), piece.size(), flags);
  if (code == cudaSuccess) {
    code = cudaHostGetDevicePointer(&address, piece.data(), 0);
    if (code != cudaSuccess) cudaHostUnregister(piece.data());
  }
  if (code == cudaSuccess) return static_cast<std::byte*>(address);
  cudaGetLastError();
  return nullptr;
}

// All of it or nothing: copies out of memory that is not pinned work as well, slowly.
void register_host(const ExtentMapping& host, int device) {
  const OnDevice on(device);
  populate_in_pieces(host.bytes);
  unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
  if (host.read_only) flags |= cudaHostRegisterReadOnly;
  std::byte* begin = nullptr;
  std::uint64_t done = 0;
  each_piece(host, [&](std::span<std::byte> piece) {
    const auto began = Clock::now();
    std::byte* const at = register_piece(piece, flags);
    if (at == nullptr) return false;
    if (done == 0) begin = at;
    if (at != begin + done) {  // the GPU finds the pieces apart
      cudaHostUnregister(piece.data());
      return false;
    }
    done += piece.size();
    std::this_thread::sleep_for(Clock::now() - began);
    return true;
  });
  if (done < host.bytes.size()) return unregister(host, done);
  host.gpu_bytes.store(begin, std::memory_order_release);
}

// Has `end` take the mapping when its last user lets go, on the background thread.
template <class End>
std::shared_ptr<const ExtentMapping> ended_by(std::unique_ptr<ExtentMapping> mapping,
                                              std::shared_ptr<Background::Queue> queue, End end) {
  return {mapping.release(), [queue = std::move(queue), end](const ExtentMapping* last) {
            // std::function wants what can be copied.
            auto owner =
                std::make_shared<std::unique_ptr<ExtentMapping>>(const_cast<ExtentMapping*>(last));
            queue->post([owner, end] { end(std::move(*owner)); });
          }};
}

Error no_gpu(const std::string& what) {
  return make_error(Errc::unavailable, what + "; see nvidia-smi and CUDA_VISIBLE_DEVICES");
}

}  // namespace

CudaGpu::CudaGpu(int device, const CudaDriver& driver, const GpuUuid& uuid)
    : device_(device),
      driver_(driver),
      uuid_(uuid),
      pools_(std::make_shared<CudaPools>(device)),
      background_(device) {}

CudaGpu::~CudaGpu() {
  const OnDevice on(device_);
  streams_ = {};
}

Result<std::shared_ptr<CudaGpu>> CudaGpu::open(std::uint32_t cuda_device) {
  int count = 0;
  const std::string which = "cuda_device " + std::to_string(cuda_device);
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess) {
    cudaGetLastError();
    return no_gpu(cuda_error(which + ": no GPU here", code).message);
  }
  if (cuda_device >= static_cast<std::uint32_t>(count)) {
    return no_gpu(which + ": this process sees " + std::to_string(count) + " GPUs");
  }
  const auto driver = CudaDriver::get();
  if (!driver) return driver.error();
  const int device = static_cast<int>(cuda_device);
  const OnDevice on(device);
  cudaDeviceProp properties;
  cudaError_t code = cudaGetDeviceProperties(&properties, device);
  if (code == cudaSuccess) code = cudaFree(nullptr);  // the context is there from now on
  if (code != cudaSuccess) return no_gpu(cuda_error(which, code).message);
  if (properties.unifiedAddressing == 0 || properties.canMapHostMemory == 0) {
    return no_gpu(which + " (" + properties.name + ") cannot read host memory");
  }
  GpuUuid uuid;
  std::memcpy(uuid.data(), properties.uuid.bytes, uuid.size());
  try {
    auto gpu = std::make_shared<CudaGpu>(device, **driver, uuid);
    if (auto good = gpu->make_streams(); !good) return good.error();
    if (auto good = gpu->warm_up(); !good) return good.error();
    return gpu;
  } catch (const std::system_error& error) {
    return make_error(Errc::io, std::string("cannot start a thread: ") + error.what());
  }
}

Result<void> CudaGpu::make_streams() {
  using Priority = kernels::cuda::Stream::Priority;
  for (const auto& [stream, priority] :
       {std::pair{&streams_.load, Priority::first}, std::pair{&streams_.unpack, Priority::first},
        std::pair{&streams_.check, Priority::first},
        std::pair{&streams_.to_ring[0], Priority::first},
        std::pair{&streams_.to_ring[1], Priority::first},
        std::pair{&streams_.to_host[0], Priority::last},
        std::pair{&streams_.to_host[1], Priority::last},
        std::pair{&streams_.on_device, Priority::last}}) {
    auto made = make_stream(priority);
    if (!made) return made.error();
    *stream = std::move(*made);
  }
  return {};
}

Result<void> StagingRing::make(CudaPools& pools) {
  for (std::size_t i = 0; i < kBuffers; ++i) {
    auto memory = pools.memory(CudaPools::Kind::device, kBytes);
    auto filled = pools.event();
    auto emptied = pools.event();
    if (!memory) return memory.error();
    if (!filled) return filled.error();
    if (!emptied) return emptied.error();
    buffers_[i] = std::move(*memory);
    filled_[i] = std::move(*filled);
    emptied_[i] = std::move(*emptied);
  }
  return {};
}

// What may wait for the whole device at its first use, while nobody waits for it: memory and events
// for the first loads, and the code of the copy kernel.
Result<void> CudaGpu::warm_up() {
  if (auto good = ring_.make(*pools_); !good) return good.error();
  struct Wanted {
    CudaPools::Kind kind;
    std::size_t bytes;
    std::size_t count;
  };
  constexpr auto kHost = CudaPools::Kind::host;
  constexpr auto kDevice = CudaPools::Kind::device;
  std::vector<CudaPools::Memory> taken;
  for (const Wanted& wanted :
       {Wanted{kHost, 64_KiB, 4}, Wanted{kDevice, 64_KiB, 4}, Wanted{kHost, 256_KiB, 2},
        Wanted{kDevice, 256_KiB, 2}, Wanted{kHost, 1_MiB, 2}, Wanted{kDevice, 1_MiB, 2},
        Wanted{kHost, 4_MiB, 1}, Wanted{kHost, 16_MiB, 1}}) {
    for (std::size_t i = 0; i < wanted.count; ++i) {
      auto memory = pools_->memory(wanted.kind, wanted.bytes);
      if (!memory) return memory.error();
      taken.push_back(std::move(*memory));
    }
  }
  std::vector<CudaPools::Event> events;
  for (int i = 0; i < 128; ++i) {
    auto event = pools_->event();
    if (!event) return event.error();
    events.push_back(std::move(*event));
  }
  auto** table = taken[0].at<std::byte*>(0);
  table[0] = table[1] = taken[0].get() + 32;
  try {
    kernels::cuda::copy_pieces(table, table + 1, 1, 0, 16, 1, streams_.check.view());
    kernels::cuda::check(cudaStreamSynchronize(streams_.check.get()), "a first copy");
  } catch (const kernels::cuda::CudaError& error) {
    return make_error(Errc::unavailable,
                      std::string("the GPU does not run kvtier's kernels: ") + error.what());
  }
  return {};
}

Result<std::shared_ptr<const ExtentMapping>> CudaGpu::map(const UniqueFd& fd, std::uint64_t bytes,
                                                          std::uint64_t slot_bytes) {
  if (auto good = session::check_shape(bytes, slot_bytes); !good) return good.error();
  const OnDevice on(device_);
  auto memory = driver_.map(fd.get(), bytes, device_);
  if (!memory) return memory.error();
  auto extent = std::make_unique<ExtentMapping>();
  extent->tier = Tier::device;
  extent->slot_bytes = slot_bytes;
  extent->bytes = *memory;
  extent->on_gpu = true;
  extent->gpu_bytes.store(memory->data());
  return ended_by(std::move(extent), background_.queue(),
                  [device = device_, &driver = driver_](std::unique_ptr<ExtentMapping> last) {
                    unmap(std::move(last), device, driver);
                  });
}

std::shared_ptr<const ExtentMapping> CudaGpu::pin(std::unique_ptr<ExtentMapping> host) {
  host->pinned_together =
      static_cast<std::uint32_t>(std::max<std::uint64_t>(1, kPinnedAtOnce / host->slot_bytes));
  auto shared = ended_by(
      std::move(host), background_.queue(),
      [device = device_](std::unique_ptr<ExtentMapping> last) { unpin(std::move(last), device); });
  background_.queue()->post([weak = std::weak_ptr<const ExtentMapping>(shared), device = device_] {
    if (const auto still_there = weak.lock()) register_host(*still_there, device);
  });
  return shared;
}

Result<void> CudaGpu::check_reach(const void* address, const std::string& what) const {
  cudaPointerAttributes attributes;
  const cudaError_t code = cudaPointerGetAttributes(&attributes, address);
  if (code != cudaSuccess) {
    cudaGetLastError();
    return cuda_error("the memory of " + what, code);
  }
  const bool ours = attributes.type == cudaMemoryTypeDevice && attributes.device == device_;
  if (ours || attributes.type == cudaMemoryTypeHost || attributes.type == cudaMemoryTypeManaged)
    return {};
  return make_error(Errc::invalid, "pages: " + what + " is not in memory of GPU " +
                                       std::to_string(device_) + ", the client's cuda_device");
}

Result<void> CudaGpu::check_reach(const PageTable& pages, const session::NamespaceEntry& ns) {
  if (pages.blocks() == 0) return {};
  if (pages.of_pool()) return check_pool(pages, ns);
  const std::size_t wanted = pages.of_records() ? 16 : bytes_of(pages.type());
  if (pages.pointer_alignment() < wanted) {
    return make_error(Errc::invalid,
                      "pages: one begins at no multiple of " + std::to_string(wanted) + " bytes");
  }
  return check_reach(pages.of_records() ? pages.record(0) : pages.k(0, 0), "the first page");
}

// From the first to the last byte. Asking the driver for each layer takes longer than a small load
// may, and an engine has one pool or two.
Result<void> CudaGpu::check_pool(const PageTable& pages, const session::NamespaceEntry& ns) {
  std::vector<PoolLayer> layers;
  layers.reserve(ns.layout.layers);
  for (std::uint32_t i = 0; i < ns.layout.layers; ++i) layers.push_back(pages.pool_layer(i));
  const std::lock_guard lock(reached_mutex_);
  if (std::ranges::find(reached_, layers) != reached_.end()) return {};
  for (std::uint32_t i = 0; i < layers.size(); ++i) {
    for (const PoolSide* side : {&layers[i].k, &layers[i].v}) {
      if (side->base == nullptr) continue;
      const std::string what =
          std::string(side == &layers[i].k ? "K" : "V") + " of layer " + std::to_string(i);
      for (const std::byte* at : {side->base, side->base + side->bytes - 1}) {
        if (auto good = check_reach(at, what); !good) return good;
      }
    }
  }
  if (reached_.size() == kPoolsReached) reached_.pop_front();
  reached_.push_back(std::move(layers));
  return {};
}

Result<std::shared_ptr<Loading>> CudaGpu::load(std::shared_ptr<session::HeldBlocks> hold,
                                               PageTable pages, StreamView stream, Landed landed) {
  const OnDevice on(device_);
  if (auto good = check_reach(pages, hold->ns()); !good) return good.error();
  return CudaLoad::start(shared_from_this(), std::move(hold), std::move(pages), stream,
                         std::move(landed));
}

Result<std::shared_ptr<WriteBackJob>> CudaGpu::write_back(
    std::shared_ptr<session::Session> session, std::shared_ptr<session::NamespaceEntry> ns,
    std::shared_ptr<WriteBackBudget> budget, WriteBackJob::Work work, StreamView stream) {
  const OnDevice on(device_);
  if (auto good = check_reach(work.pages, *ns); !good) return good.error();
  auto after = pools_->event();
  if (!after) return after.error();
  if (const cudaError_t code = cudaEventRecord(after->get(), stream.get()); code != cudaSuccess) {
    return cuda_error("an event on the engine's stream", code);
  }
  return std::shared_ptr<WriteBackJob>(
      std::make_shared<CudaWriteBackJob>(shared_from_this(), std::move(*after), std::move(session),
                                         std::move(ns), std::move(budget), std::move(work)));
}

bool CudaGpu::copy_record(const session::SlotRef& from, const session::SlotRef& to,
                          std::size_t bytes) noexcept {
  const OnDevice on(device_);
  const cudaStream_t stream = streams_.on_device.get();
  // See CudaLoad::copy_unpinned().
  const bool unpinned = from.gpu_address() == nullptr || to.gpu_address() == nullptr;
  if (unpinned && cudaStreamSynchronize(stream) != cudaSuccess) return false;
  return cudaMemcpyAsync(to.bytes().data(), from.bytes().data(), bytes, cudaMemcpyDefault,
                         stream) == cudaSuccess &&
         cudaStreamSynchronize(stream) == cudaSuccess;
}

Result<std::shared_ptr<Gpu>> open_gpu(std::uint32_t cuda_device) {
  auto gpu = CudaGpu::open(cuda_device);
  if (!gpu) return gpu.error();
  return std::shared_ptr<Gpu>(std::move(*gpu));
}

}  // namespace kvtier::transfer
