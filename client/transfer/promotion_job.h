// Copies records of a lease from host slots to device slots, so that the next load finds them
// closer. The least urgent work there is: it stops when slots or its time run out. Of a load the
// headers have been looked at; ahead of a request nobody has, so the job looks at each itself, and
// waits for slots as long as it has time.
#pragma once

#include "client/session/held_blocks.h"
#include "client/transfer/copy_queue.h"
#include "client/transfer/gpu.h"
#include "core/record/private_head.h"

namespace kvtier::transfer {

class PromotionJob : public CopyJob {
 public:
  enum class For { load, request_to_come };
  // Counts as a use of the lease. Of `blocks`, the leading blocks that are in memory (for a load:
  // whose headers hold), those from `first` on.
  // `gpu`: whose memory the device slots may be; null: all is host memory.
  PromotionJob(std::shared_ptr<session::HeldBlocks> hold, std::uint32_t first, std::uint32_t blocks,
               std::shared_ptr<Gpu> gpu, For what = For::load);
  ~PromotionJob() override;

  // Whether any of the blocks lies in host memory alone.
  static bool worthwhile(const session::HeldBlocks& hold, std::uint32_t first,
                         std::uint32_t blocks);

  Step step() noexcept override;
  void abandon() noexcept override {}

 private:
  bool copy(const session::SlotRef& from, const session::SlotRef& to) const noexcept;
  bool holds(std::uint32_t block);

  const std::shared_ptr<session::HeldBlocks> hold_;
  const std::vector<session::HeldBlocks::Block> blocks_;
  const bool ahead_;
  const std::uint32_t count_;
  const std::shared_ptr<Gpu> gpu_;
  const Deadline give_up_;
  std::uint32_t next_;
  PrivateHead head_;
};

}  // namespace kvtier::transfer
