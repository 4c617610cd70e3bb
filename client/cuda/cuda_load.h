// Copies leased records to an engine's pages on its GPU, a few layers a launch, on a stream of the
// client's that follows the engine's stream and is followed by it.
//
// Everything is launched by start(), on the engine's thread: wait_layer() then only names an event.
// What comes from the host is, where the pages are records and slots are at hand, also copied on to
// slots of the device tier before the load ends.
#pragma once

#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "client/cuda/cuda_gpu.h"
#include "client/cuda/cuda_runs.h"
#include "client/session/session.h"

namespace kvtier::transfer {

class CudaLoad final : public Loading {
 public:
  // Takes over one use of the lease where it does not fail. Errors: io, no_space; nothing is being
  // copied then.
  static Result<std::shared_ptr<Loading>> start(std::shared_ptr<CudaGpu> gpu,
                                                std::shared_ptr<session::HeldBlocks> hold,
                                                PageTable pages, StreamView stream,
                                                Gpu::Landed landed);
  CudaLoad(std::shared_ptr<CudaGpu> gpu, std::shared_ptr<session::HeldBlocks> hold, PageTable pages,
           Gpu::Landed landed);
  ~CudaLoad() override;

  std::uint32_t blocks() const noexcept override {
    return static_cast<std::uint32_t>(slots_.size());
  }
  std::span<const BlockFault> faults() const noexcept override { return faults_; }
  std::span<std::byte* const> records() const noexcept override { return records_; }
  void wait_layer(std::uint32_t layer, StreamView stream) override;
  bool ended() noexcept override;
  std::uint32_t finish() override;

 private:
  // Copies that one kernel does.
  struct Part {
    std::vector<RecordCopy> copies;
    std::uint32_t thread_blocks = 0;
    bool on_device = true;                  // where the copies are from
    std::byte* table_written = nullptr;     // its pointers, as the CPU writes them
    const std::byte* table_read = nullptr;  // and as the device reads them
  };
  // Records that the CPU copies to pinned memory when the stream comes to it.
  struct Staged {
    struct Copy {
      const std::byte* from;
      std::byte* to;
    };
    std::vector<Copy> copies;
    std::size_t bytes = 0;  // of each
  };
  struct Promotion {
    std::uint32_t block;
    session::ReservedSlot slot;
  };
  struct Group {
    LayerRange layers;
    CudaPools::Event landed;
  };

  Result<void> begin_copies();
  Result<void> fill_ring();
  void give_up_copies();
  Result<void> prove();
  Result<CudaPools::Memory> fetch_headers(const std::vector<session::HeldBlocks::Block>& blocks,
                                          std::size_t count,
                                          std::vector<const std::byte*>& headers);
  void choose_parts();
  void choose_promotions();
  Result<void> launch(StreamView stream);
  Result<void> follow(StreamView stream);
  Result<void> copy_unpinned();
  static void copy_staged(const Staged& staged) noexcept;
  Result<void> send_tables(std::size_t runs_bytes);
  std::size_t table_bytes(std::size_t copies) const noexcept;
  void write_table(const Part& part) const;
  void launch_layers(const Part& part, const LayerRange& layers) const;
  Result<void> launch_group(const LayerRange& layers);
  void launch_promotions() const;
  std::vector<LayerRange> layer_groups() const;
  void settle_promotions(bool good);

  const std::shared_ptr<CudaGpu> gpu_;
  const std::shared_ptr<session::HeldBlocks> hold_;
  const PageTable pages_;
  const session::NamespaceEntry& ns_;
  const RecordLayout& layout_;
  const CudaPages cuda_pages_;
  const StreamView stream_;
  const Clock::time_point began_ = Clock::now();
  Gpu::Landed landed_;
  std::vector<session::HeldBlocks::Block> held_;
  std::vector<session::SlotRef> slots_;  // keep the records mapped
  std::vector<BlockFault> faults_;
  std::vector<std::byte*> records_;
  Part near_, far_;               // sources on the card, and in pinned host memory
  std::optional<CudaRuns> runs_;  // those of the latter that the copy engine does
  std::size_t runs_table_ = 0;    // bytes
  std::unique_lock<std::mutex> ring_;
  std::vector<RecordCopy> unpinned_;
  std::vector<Promotion> promotions_;
  const std::byte* promotions_table_ = nullptr;
  CudaPools::Memory host_table_, table_;  // the same bytes, written here and read there
  CudaPools::Memory staging_;             // pinned, for unpinned records
  std::deque<Staged> staged_;             // the stream has pointers to them
  std::vector<CudaPools::Memory> staging_tables_;
  std::vector<LayerRange> to_launch_;
  std::vector<Group> groups_;  // launched
  CudaPools::Event done_;

  std::mutex mutex_;
  bool failed_ = false;
  bool finished_ = false;
  std::uint32_t good_ = 0;
};

}  // namespace kvtier::transfer
