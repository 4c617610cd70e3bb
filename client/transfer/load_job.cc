#include "client/transfer/load_job.h"

#include <algorithm>

#include "client/base/check.h"
#include "client/record/record.h"
#include "client/session/session.h"

namespace kvtier::transfer {

using session::Counters;
using session::HeldBlocks;

LoadJob::LoadJob(std::shared_ptr<HeldBlocks> hold, PageTable pages, std::function<void()> landed)
    : hold_(std::move(hold)),
      pages_(std::move(pages)),
      layers_(hold_->ns().layout.layers),
      landed_(std::move(landed)) {
  verify();
  if (records_.empty()) layers_landed_ = layers_;
}

LoadJob::~LoadJob() {
  finish();
}

void LoadJob::verify() {
  const auto blocks = hold_->snapshot();
  const RecordLayout& layout = hold_->ns().layout;
  const auto count = std::min<std::size_t>(blocks.size(), pages_.blocks());
  for (std::uint32_t i = 0; i < count; ++i) {
    if (blocks[i].presence == HeldBlocks::Presence::on_its_way) return;
    if (blocks[i].presence == HeldBlocks::Presence::failed) {
      return note_fault(i, make_error(Errc::io, "kvtierd could not bring the block to memory"));
    }
    const auto record = blocks[i].slot.bytes().first(layout.record_bytes);
    const BlockIdentity identity{hold_->ns().id, hold_->keys()[i], hold_->parent(i), i};
    if (auto good = verify_header(record, layout, identity, hold_->tokens(i)); !good) {
      Counters::add(hold_->session()->counters().proof_faults);
      hold_->session()->report_bad(identity.key);
      return note_fault(i, good.error());
    }
    slots_.push_back(blocks[i].slot);
    records_.push_back(record.data());
  }
}

void LoadJob::note_fault(std::uint32_t block, Error error) {
  Counters::add(hold_->session()->counters().faults);
  faults_.push_back({block, std::move(error)});
}

CopyJob::Step LoadJob::step() noexcept {
  std::uint32_t layer;
  {
    const std::lock_guard lock(mutex_);
    layer = layers_landed_;
  }
  if (layer < layers_) pages_.load_layer(layer++, records_);
  const bool last = layer == layers_;
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

void LoadJob::wait_layer(std::uint32_t layer) {
  std::unique_lock lock(mutex_);
  KVTIER_CHECK(layer < layers_);
  changed_.wait(lock, [&] { return abandoned_ || layers_landed_ > layer; });
}

void LoadJob::wait_all() {
  wait_layer(layers_ - 1);
}

std::uint32_t LoadJob::finish() {
  wait_all();
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
