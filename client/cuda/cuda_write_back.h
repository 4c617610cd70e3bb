// Writes blocks back from pages on the GPU: packed and quantised there, taken to host slots by the
// copy engines, and copied to slots of the device tier on the card. In batches, two under way.
//
// Headers and proofs are the CPU's: they go into a host slot once its copy has ended, and over the
// page's own header in a device slot.
#pragma once

#include <deque>
#include <vector>

#include "client/cuda/cuda_gpu.h"

namespace kvtier::transfer {

class CudaWriteBackJob final : public WriteBackJob {
 public:
  // `after`: recorded on the engine's stream when the blocks were offered.
  CudaWriteBackJob(std::shared_ptr<CudaGpu> gpu, CudaPools::Event after,
                   std::shared_ptr<session::Session> session,
                   std::shared_ptr<session::NamespaceEntry> ns,
                   std::shared_ptr<WriteBackBudget> budget, Work work);
  ~CudaWriteBackJob() override;

  Step step() noexcept override;
  void abandon() noexcept override;

 private:
  struct Filling {
    std::uint32_t block;
    Slots slots;
    const std::byte* from = nullptr;  // the record on the card
  };
  struct Batch {
    std::vector<Filling> blocks;          // in the order of their slots in host memory
    CudaPools::Memory headers;            // for device slots, pinned
    CudaPools::Memory packed;             // records made from K and V pages
    CudaPools::Memory host_table, table;  // of the pages: the same, written here and read there
    std::vector<CudaPools::Event> ends;
    bool failed = false;
  };

  static std::byte* host_bytes(const Filling& filling) noexcept;
  // Takes slots for the next blocks. `settled`: those that need none or get none; `later`: slots
  // are on their way.
  Batch gather(std::uint32_t& settled, bool& later);
  void launch(Batch& batch) noexcept;
  Result<void> try_launch(Batch& batch);
  Result<void> pack(Batch& batch);
  void copy_to_host(const Batch& batch) const;
  Result<void> copy_to_device(Batch& batch);
  std::uint32_t finish_oldest() noexcept;

  const std::shared_ptr<CudaGpu> gpu_;
  const CudaPools::Event after_;
  std::uint32_t next_ = 0;
  std::deque<Batch> under_way_;
};

}  // namespace kvtier::transfer
