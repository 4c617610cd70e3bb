// Write-backs whose pages are filled layer by layer (kvtier::LayerStore).
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "client/transfer/write_back_job.h"

namespace kvtier::transfer {

// What is behind a LayerStore, whichever processor copies. One thread at a time, the engine's.
class LayerStoring {
 public:
  virtual ~LayerStoring() = default;
  std::uint32_t blocks() const noexcept { return blocks_; }
  // As the public function. Errors: invalid.
  Result<void> layer(std::uint32_t layer, StreamView stream);
  // The layer that was not handed over, if there is one.
  std::optional<std::uint32_t> missing() const noexcept;
  // After all layers: the job that stores the blocks, queued. Errors: invalid, io (the GPU
  // refuses); the blocks are counted as dropped then.
  virtual Result<std::shared_ptr<WriteBackJob>> commit() = 0;
  // Nothing will come of it. Afterwards the pages are not read any more.
  virtual void cancel() noexcept = 0;

 protected:
  LayerStoring(std::uint32_t blocks, std::uint32_t layers)
      : blocks_(blocks), handed_over_(layers) {}
  virtual Result<void> take_layer(std::uint32_t layer, StreamView stream) = 0;

 private:
  const std::uint32_t blocks_;
  std::vector<bool> handed_over_;
};

// Copies each layer as it comes, on the copy thread, into slots that are taken with the first.
class HostLayerStore final : public WriteBackJob {
 public:
  HostLayerStore(std::shared_ptr<session::Session> session,
                 std::shared_ptr<session::NamespaceEntry> ns,
                 std::shared_ptr<WriteBackBudget> budget, Work work);

  // Engine. Where the answer is true the job is in no queue, and to be queued.
  bool take_layer(std::uint32_t layer);
  bool commit();
  void cancel() noexcept;

  // Copy thread. Done as soon as nothing of it can be copied now; then it is queued again.
  Step step() noexcept override;
  void abandon() noexcept override;

 private:
  enum class Task { take_slots, copy, store, none };

  Task begin_task();
  void end_task() noexcept;
  bool take_next_slots() noexcept;
  void copy_piece() noexcept;
  void store_block() noexcept;
  void give_slots_back() noexcept;

  std::mutex mutex_;
  std::condition_variable idle_;
  std::deque<std::uint32_t> layers_;  // handed over, not copied
  bool queued_ = false;
  bool busy_ = false;  // the copy thread is in step()
  bool committed_ = false;
  bool ended_ = false;  // cancelled, or abandoned

  // The copy thread's, or whoever finds it idle and ended.
  std::vector<Slots> slots_;  // of the blocks before taken_; none: cached, or dropped
  std::uint32_t taken_ = 0;
  std::uint32_t copied_ = 0;  // blocks of the layer in front
  std::uint32_t stored_ = 0;
};

std::shared_ptr<LayerStoring> make_host_layer_store(std::shared_ptr<HostLayerStore> job,
                                                    std::shared_ptr<CopyQueue> copies,
                                                    std::uint32_t blocks, std::uint32_t layers);

// Copies nothing before commit(), which then calls `write_back` with the stream of the last layer.
// Without it `forget` is called.
std::shared_ptr<LayerStoring> make_deferred_layer_store(
    std::uint32_t blocks, std::uint32_t layers,
    std::function<Result<std::shared_ptr<WriteBackJob>>(StreamView)> write_back,
    std::function<void()> forget);

}  // namespace kvtier::transfer
