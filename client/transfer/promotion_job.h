// Copies records of a lease from host slots to device slots, so that the next load finds them
// closer. The least urgent work there is: it stops when slots or its time run out.
#pragma once

#include "client/session/held_blocks.h"
#include "client/transfer/copy_queue.h"
#include "client/transfer/gpu.h"

namespace kvtier::transfer {

class PromotionJob : public CopyJob {
 public:
  // Counts as a use of the lease. Of `blocks`, the leading blocks whose headers hold, those from
  // `first` on.
  // `gpu`: whose memory the device slots may be; null: all is host memory.
  PromotionJob(std::shared_ptr<session::HeldBlocks> hold, std::uint32_t first, std::uint32_t blocks,
               std::shared_ptr<Gpu> gpu);
  ~PromotionJob() override;

  // Whether any of the blocks lies in host memory alone.
  static bool worthwhile(const session::HeldBlocks& hold, std::uint32_t first,
                         std::uint32_t blocks);

  Step step() noexcept override;
  void abandon() noexcept override {}

 private:
  bool copy(const session::SlotRef& from, const session::SlotRef& to) const noexcept;

  const std::shared_ptr<session::HeldBlocks> hold_;
  const std::vector<session::HeldBlocks::Block> blocks_;
  const std::uint32_t count_;
  const std::shared_ptr<Gpu> gpu_;
  const Deadline give_up_;
  std::uint32_t next_;
};

}  // namespace kvtier::transfer
