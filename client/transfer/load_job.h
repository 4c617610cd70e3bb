// Copies leased records to an engine's pages, layer 0 of all blocks first.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "client/session/held_blocks.h"
#include "client/transfer/copy_queue.h"
#include "client/transfer/loading.h"
#include "client/transfer/page_table.h"

namespace kvtier::transfer {

class LoadJob final : public CopyJob, public Loading {
 public:
  // `landed` is called on the copying thread once the last layer is in the pages.
  LoadJob(std::shared_ptr<session::HeldBlocks> hold, PageTable pages, std::function<void()> landed);
  ~LoadJob() override;

  std::uint32_t blocks() const noexcept override {
    return static_cast<std::uint32_t>(sources_.size());
  }
  std::span<const BlockFault> faults() const noexcept override { return faults_; }
  std::span<std::byte* const> records() const noexcept override { return records_; }

  Step step() noexcept override;
  void abandon() noexcept override;

  void wait_layer(std::uint32_t layer, StreamView stream) override;
  bool ended() noexcept override;
  bool wait(Deadline deadline) noexcept override;
  // The lease may go afterwards.
  std::uint32_t finish() override;

 private:
  // Takes the leading blocks whose header and proof hold.
  void verify();

  const std::shared_ptr<session::HeldBlocks> hold_;
  const PageTable pages_;
  const std::uint32_t layers_;
  const Clock::time_point began_ = Clock::now();
  std::function<void()> landed_;
  std::vector<session::SlotRef> slots_;  // keeps the records mapped
  std::vector<std::byte*> sources_;      // null: not copied, attended to in place
  std::vector<std::byte*> records_;      // for pages of records: where each is attended to
  std::vector<BlockFault> faults_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t layers_landed_ = 0;
  bool abandoned_ = false;
  bool finished_ = false;
  std::uint32_t good_ = 0;
};

}  // namespace kvtier::transfer
