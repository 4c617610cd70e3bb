#include "client/transfer/layer_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/session/limits.h"
#include "core/base/check.h"
#include "core/base/points.h"
#include "core/record/record.h"

namespace kvtier::transfer {
namespace {

// Of one layer, between two looks at more urgent work.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

}  // namespace

Result<void> LayerStoring::layer(std::uint32_t layer, StreamView stream) {
  if (layer >= handed_over_.size()) {
    return make_error(Errc::invalid, "layer " + std::to_string(layer) + " of a namespace with " +
                                         std::to_string(handed_over_.size()));
  }
  if (handed_over_[layer])
    return make_error(Errc::invalid, "layer " + std::to_string(layer) + " was handed over before");
  if (auto taken = take_layer(layer, stream); !taken) return taken;
  handed_over_[layer] = true;
  return {};
}

std::optional<std::uint32_t> LayerStoring::missing() const noexcept {
  const auto first = std::ranges::find(handed_over_, false);
  if (first == handed_over_.end()) return {};
  return static_cast<std::uint32_t>(first - handed_over_.begin());
}

HostLayerStore::HostLayerStore(std::shared_ptr<session::Session> session,
                               std::shared_ptr<session::NamespaceEntry> ns,
                               std::shared_ptr<WriteBackBudget> budget, Work work)
    : WriteBackJob(std::move(session), std::move(ns), std::move(budget), std::move(work)),
      slots_(blocks()) {}

bool HostLayerStore::take_layer(std::uint32_t layer) {
  const std::lock_guard lock(mutex_);
  layers_.push_back(layer);
  return !ended_ && !std::exchange(queued_, true);
}

bool HostLayerStore::commit() {
  {
    const std::lock_guard lock(mutex_);
    committed_ = true;
    if (!ended_) return !std::exchange(queued_, true);
  }
  drop_rest();
  return false;
}

void HostLayerStore::cancel() noexcept {
  {
    std::unique_lock lock(mutex_);
    if (std::exchange(ended_, true)) return;
    idle_.wait(lock, [&] { return !busy_; });
  }
  give_slots_back();
  forget();
}

HostLayerStore::Task HostLayerStore::begin_task() {
  const std::lock_guard lock(mutex_);
  Task task = Task::none;
  if (ended_) {
    task = Task::none;
  } else if (taken_ < blocks() && (committed_ || !layers_.empty())) {
    task = Task::take_slots;
  } else if (!layers_.empty()) {
    task = Task::copy;
  } else if (committed_) {
    task = Task::store;
  }
  busy_ = task != Task::none;
  queued_ = busy_;
  return task;
}

void HostLayerStore::end_task() noexcept {
  const std::lock_guard lock(mutex_);
  busy_ = false;
  idle_.notify_all();
}

CopyJob::Step HostLayerStore::step() noexcept {
  Step step = Step::more;
  switch (begin_task()) {
    case Task::none:
      return Step::done;
    case Task::take_slots:
      if (!take_next_slots()) step = Step::stuck;
      break;
    case Task::copy:
      copy_piece();
      break;
    case Task::store:
      store_block();
      step = settle(1);
      break;
  }
  end_task();
  return step;
}

bool HostLayerStore::take_next_slots() noexcept {
  if (take_slots(taken_, slots_[taken_]) == Taken::later) return false;
  ++taken_;
  return true;
}

void HostLayerStore::copy_piece() noexcept {
  std::uint32_t layer;
  {
    const std::lock_guard lock(mutex_);
    layer = layers_.front();
  }
  for (std::size_t bytes = 0; copied_ < blocks() && bytes < kPieceBytes; ++copied_) {
    const auto& host = slots_[copied_].host;
    if (!host) continue;
    pages().store_layer(copied_, layer, host->ref.bytes().data());
    bytes += layer_bytes(layer);
  }
  KVTIER_POINT("client.layer_store.copied");
  if (copied_ < blocks()) return;
  copied_ = 0;
  const std::lock_guard lock(mutex_);
  layers_.pop_front();
}

void HostLayerStore::store_block() noexcept {
  const std::uint32_t block = stored_++;
  Slots slots = std::exchange(slots_[block], {});
  if (!slots.host) return;
  const auto record = slots.host->ref.bytes().first(layout().record_bytes);
  write_header_of(block, record);
  if (verify_loads()) (void)seal_checksums(record);  // its header is ours, so it fits
  if (slots.device) std::memcpy(slots.device->ref.bytes().data(), record.data(), record.size());
  WriteBackJob::commit(block, std::move(slots));
}

// The client has closed: the copy thread is gone, and nobody asks for the budget.
void HostLayerStore::abandon() noexcept {
  bool stores = false;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
    stores = committed_;
  }
  give_slots_back();
  if (stores) drop_rest();
}

void HostLayerStore::give_slots_back() noexcept {
  for (Slots& slots : slots_) put_back(std::exchange(slots, {}));
}

namespace {

class HostLayers final : public LayerStoring {
 public:
  HostLayers(std::shared_ptr<HostLayerStore> job, std::shared_ptr<CopyQueue> copies,
             std::uint32_t blocks, std::uint32_t layers)
      : LayerStoring(blocks, layers), job_(std::move(job)), copies_(std::move(copies)) {}

  Result<std::shared_ptr<WriteBackJob>> commit() override {
    if (job_->commit()) queue();
    return std::shared_ptr<WriteBackJob>(job_);
  }
  void cancel() noexcept override { job_->cancel(); }

 private:
  Result<void> take_layer(std::uint32_t layer, StreamView stream) override {
    if (stream)
      return make_error(Errc::invalid, "a stream was given, and this client copies without one");
    if (job_->take_layer(layer)) queue();
    return {};
  }
  void queue() {
    if (!copies_->push(CopyQueue::Priority::write_back, job_, session::kWriteBacksQueuedMax))
      job_->abandon();
  }

  const std::shared_ptr<HostLayerStore> job_;
  const std::shared_ptr<CopyQueue> copies_;
};

class DeferredLayers final : public LayerStoring {
 public:
  DeferredLayers(std::uint32_t blocks, std::uint32_t layers,
                 std::function<Result<std::shared_ptr<WriteBackJob>>(StreamView)> write_back,
                 std::function<void()> forget)
      : LayerStoring(blocks, layers),
        write_back_(std::move(write_back)),
        forget_(std::move(forget)) {}

  Result<std::shared_ptr<WriteBackJob>> commit() override { return write_back_(stream_); }
  void cancel() noexcept override { forget_(); }

 private:
  Result<void> take_layer(std::uint32_t, StreamView stream) override {
    stream_ = stream;
    return {};
  }

  const std::function<Result<std::shared_ptr<WriteBackJob>>(StreamView)> write_back_;
  const std::function<void()> forget_;
  StreamView stream_;
};

}  // namespace

std::shared_ptr<LayerStoring> make_host_layer_store(std::shared_ptr<HostLayerStore> job,
                                                    std::shared_ptr<CopyQueue> copies,
                                                    std::uint32_t blocks, std::uint32_t layers) {
  return std::make_shared<HostLayers>(std::move(job), std::move(copies), blocks, layers);
}

std::shared_ptr<LayerStoring> make_deferred_layer_store(
    std::uint32_t blocks, std::uint32_t layers,
    std::function<Result<std::shared_ptr<WriteBackJob>>(StreamView)> write_back,
    std::function<void()> forget) {
  return std::make_shared<DeferredLayers>(blocks, layers, std::move(write_back), std::move(forget));
}

}  // namespace kvtier::transfer
