// Copies leased records to an engine's pages, layer 0 of all blocks first.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "client/session/held_blocks.h"
#include "client/transfer/copy_queue.h"
#include "client/transfer/page_table.h"

namespace kvtier::transfer {

class LoadJob : public CopyJob {
 public:
  // `landed` is called on the copying thread once the last layer is in the pages.
  LoadJob(std::shared_ptr<session::HeldBlocks> hold, PageTable pages, std::function<void()> landed);
  ~LoadJob() override;

  std::uint32_t blocks() const noexcept { return static_cast<std::uint32_t>(records_.size()); }
  std::span<const BlockFault> faults() const noexcept { return faults_; }

  Step step() noexcept override;
  void abandon() noexcept override;

  void wait_layer(std::uint32_t layer);
  void wait_all();
  // See Load::finish(). The lease may go afterwards.
  std::uint32_t finish();

 private:
  // Takes the leading blocks whose header and proof hold.
  void verify();
  void note_fault(std::uint32_t block, Error error);

  const std::shared_ptr<session::HeldBlocks> hold_;
  const PageTable pages_;
  const std::uint32_t layers_;
  std::function<void()> landed_;
  std::vector<session::SlotRef> slots_;  // keeps the records mapped
  std::vector<std::byte*> records_;
  std::vector<BlockFault> faults_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t layers_landed_ = 0;
  bool abandoned_ = false;
  bool finished_ = false;
  std::uint32_t good_ = 0;
};

}  // namespace kvtier::transfer
