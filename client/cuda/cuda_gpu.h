// A client's GPU through the CUDA runtime: its streams, its pools, and memory shared with other
// processes.
#pragma once

#include <array>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/cuda/cuda_background.h"
#include "client/cuda/cuda_device.h"
#include "client/cuda/cuda_pools.h"
#include "client/transfer/gpu.h"

namespace kvtier::transfer {

// Buffers on the card between the copy engine and a kernel, used in turn.
class StagingRing {
 public:
  static constexpr std::size_t kBuffers = 4;

  // Once. Errors: io, no_space.
  Result<void> make(CudaPools& pools);
  std::byte* buffer(std::size_t number) const noexcept { return buffers_[number].get(); }
  static constexpr std::size_t kBytes = 16U << 20;

  // Held from take() until what uses the buffers is launched.
  std::mutex mutex;
  std::size_t take() noexcept { return std::exchange(next_, (next_ + 1) % kBuffers); }
  cudaEvent_t filled(std::size_t number) const noexcept { return filled_[number].get(); }
  cudaEvent_t emptied(std::size_t number) const noexcept { return emptied_[number].get(); }

 private:
  std::array<CudaPools::Memory, kBuffers> buffers_;
  std::array<CudaPools::Event, kBuffers> filled_, emptied_;
  std::size_t next_ = 0;
};

class CudaGpu final : public Gpu, public std::enable_shared_from_this<CudaGpu> {
 public:
  // Errors: unavailable, io.
  static Result<std::shared_ptr<CudaGpu>> open(std::uint32_t cuda_device);
  CudaGpu(int device, const CudaDriver& driver, const GpuUuid& uuid);
  ~CudaGpu() override;

  const GpuUuid& uuid() const noexcept override { return uuid_; }
  Result<std::shared_ptr<const session::ExtentMapping>> map(const UniqueFd& fd, std::uint64_t bytes,
                                                            std::uint64_t slot_bytes) override;
  std::shared_ptr<const session::ExtentMapping> pin(
      std::unique_ptr<session::ExtentMapping> host) override;
  Result<std::shared_ptr<Loading>> load(std::shared_ptr<session::HeldBlocks> hold, PageTable pages,
                                        StreamView stream, Landed landed) override;
  Result<std::shared_ptr<WriteBackJob>> write_back(std::shared_ptr<session::Session> session,
                                                   std::shared_ptr<session::NamespaceEntry> ns,
                                                   std::shared_ptr<WriteBackBudget> budget,
                                                   WriteBackJob::Work work,
                                                   StreamView stream) override;
  bool copy_record(const session::SlotRef& from, const session::SlotRef& to,
                   std::size_t bytes) noexcept override;

  int device() const noexcept { return device_; }
  CudaPools& pools() noexcept { return *pools_; }

  // Of loads, what fills the ring and what unpacks it, before all other work; of header checks,
  // which an engine waits for; and of write-backs, after all other work, and one on the device. Two
  // fill the ring and two go to the host, so that one copy's start hides behind the other.
  struct Streams {
    kernels::cuda::Stream load, unpack, check;
    std::array<kernels::cuda::Stream, 2> to_ring, to_host;
    kernels::cuda::Stream on_device;
  };
  const Streams& streams() const noexcept { return streams_; }
  StagingRing& ring() noexcept { return ring_; }

  // Whether work on the device can reach the pages. Errors: invalid, naming what it cannot.
  Result<void> check_reach(const PageTable& pages, const session::NamespaceEntry& ns);

 private:
  static constexpr std::size_t kPoolsReached = 4;
  Result<void> check_reach(const void* address, const std::string& what) const;
  Result<void> check_pool(const PageTable& pages, const session::NamespaceEntry& ns);
  Result<void> make_streams();
  Result<void> warm_up();

  const int device_;
  const CudaDriver& driver_;
  const GpuUuid uuid_;
  const std::shared_ptr<CudaPools> pools_;
  Streams streams_;
  StagingRing ring_;
  std::mutex reached_mutex_;
  std::deque<std::vector<PoolLayer>> reached_;  // pools that were found good last
  Background background_;
};

}  // namespace kvtier::transfer
