#include "client/transfer/load_job.h"

#include <algorithm>

#include "client/session/session.h"
#include "client/transfer/proven_blocks.h"
#include "core/base/check.h"
#include "core/base/points.h"

namespace kvtier::transfer {

using session::HeldBlocks;

LoadJob::LoadJob(std::shared_ptr<HeldBlocks> hold, PageTable pages, std::function<void()> landed)
    : hold_(std::move(hold)),
      pages_(std::move(pages)),
      layers_(hold_->ns().layout.layers),
      landed_(std::move(landed)) {
  verify();
  if (sources_.empty()) layers_landed_ = layers_;
}

LoadJob::~LoadJob() {
  finish();
}

void LoadJob::verify() {
  const auto blocks = hold_->snapshot();
  const auto count = std::min<std::size_t>(blocks.size(), pages_.blocks());
  const std::size_t bytes = hold_->ns().layout.record_bytes;
  const auto record_of = [&](std::uint32_t i) {
    return std::span<const std::byte>(blocks[i].slot.bytes().first(bytes));
  };
  PayloadHolds payload;
  if (hold_->session()->verify_loads())
    payload = [&](std::uint32_t i, const PrivateHead& head) {
      return head.payload_holds(record_of(i), hold_->ns().layout);
    };
  auto proven = prove(*hold_, blocks, count, record_of, payload);
  slots_ = std::move(proven.slots);
  faults_ = std::move(proven.faults);
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    std::byte* record = slots_[i].bytes().data();
    const bool stays = pages_.in_place() && slots_[i].extent->tier == Tier::device;
    sources_.push_back(stays ? nullptr : record);
    if (pages_.of_records()) records_.push_back(stays ? record : pages_.record(i));
  }
}

CopyJob::Step LoadJob::step() noexcept {
  std::uint32_t layer;
  {
    const std::lock_guard lock(mutex_);
    layer = layers_landed_;
  }
  KVTIER_POINT("client.load.layer");
  if (layer < layers_) pages_.load_layer(layer++, sources_);
  const bool last = layer == layers_;
  if (last) hold_->note_load(blocks(), Clock::now() - began_);
  if (last && landed_) std::exchange(landed_, {})();
  const std::lock_guard lock(mutex_);
  layers_landed_ = layer;
  changed_.notify_all();
  return last ? Step::done : Step::more;
}

void LoadJob::abandon() noexcept {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  changed_.notify_all();
}

void LoadJob::wait_layer(std::uint32_t layer, StreamView) {
  std::unique_lock lock(mutex_);
  KVTIER_CHECK(layer < layers_);
  changed_.wait(lock, [&] { return abandoned_ || layers_landed_ > layer; });
}

bool LoadJob::ended() noexcept {
  const std::lock_guard lock(mutex_);
  return abandoned_ || layers_landed_ == layers_;
}

bool LoadJob::wait(Deadline deadline) noexcept {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline,
                             [&] { return abandoned_ || layers_landed_ == layers_; });
}

std::uint32_t LoadJob::finish() {
  wait_layer(layers_ - 1, {});
  const bool alive = hold_->alive();
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(finished_, true)) return good_;
    good_ = alive && !abandoned_ ? blocks() : 0;
  }
  if (good_ < blocks()) hold_->note_loss();
  hold_->end_use();
  return good_;
}

}  // namespace kvtier::transfer
