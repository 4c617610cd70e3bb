// Writes blocks back from pages on the GPU: packed and quantised there, taken to host slots by the
// copy engines, and copied to slots of the device tier on the card. In batches, some under way.
//
// Batches are small at first, so that the link has something soon, and at the end, so that little
// is left to do once it has brought the last; the job behind it in the queue begins beside them.
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
  bool all_under_way() const noexcept override { return next_ == blocks() && !under_way_.empty(); }
  void begin() noexcept override;
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
  // Sets another batch under way. False: there is nothing to fill now.
  bool begin_batch() noexcept;
  // Takes slots for the next blocks.
  Batch gather();
  std::size_t batch_blocks() const noexcept;
  void launch(Batch& batch) noexcept;
  Result<void> try_launch(Batch& batch);
  Result<void> pack(Batch& batch);
  void copy_to_host(const Batch& batch) const;
  Result<void> copy_to_device(Batch& batch);
  std::uint32_t finish_oldest() noexcept;

  const std::shared_ptr<CudaGpu> gpu_;
  const CudaPools::Event after_;
  std::uint32_t next_ = 0;
  std::uint32_t unsettled_ = 0;  // blocks before next_ that need no slot or get none
  std::uint64_t batch_bytes_;    // of the next one
  std::deque<Batch> under_way_;
};

}  // namespace kvtier::transfer
