#include "client/transfer/promotion_job.h"

#include <algorithm>
#include <cstring>

#include "client/session/limits.h"
#include "client/session/session.h"

namespace kvtier::transfer {

using session::HeldBlocks;

PromotionJob::PromotionJob(std::shared_ptr<HeldBlocks> hold, std::uint32_t first,
                           std::uint32_t blocks, std::shared_ptr<Gpu> gpu, For what)
    : hold_(std::move(hold)),
      blocks_(hold_->snapshot()),
      ahead_(what == For::request_to_come),
      count_(ahead_ ? blocks
                    : std::min<std::uint32_t>(blocks, first + session::kPromotionBlocksMax)),
      gpu_(std::move(gpu)),
      give_up_(Clock::now() + (ahead_ ? session::kPrefetchPromotionMax : session::kPromotionMax)),
      next_(first) {}

PromotionJob::~PromotionJob() {
  hold_->end_use();
}

bool PromotionJob::worthwhile(const HeldBlocks& hold, std::uint32_t first, std::uint32_t blocks) {
  const auto held = hold.snapshot();
  return std::any_of(held.begin() + first, held.begin() + blocks,
                     [](const HeldBlocks::Block& b) { return b.slot.extent->tier == Tier::host; });
}

bool PromotionJob::copy(const session::SlotRef& from, const session::SlotRef& to) const noexcept {
  const std::size_t bytes = hold_->ns().layout.record_bytes;
  if (gpu_) return gpu_->copy_record(from, to, bytes);
  std::memcpy(to.bytes().data(), from.bytes().data(), bytes);
  return true;
}

bool PromotionJob::holds(std::uint32_t block) {
  const RecordLayout& layout = hold_->ns().layout;
  const BlockIdentity identity{hold_->ns().id, hold_->keys()[block], hold_->parent(block),
                               hold_->position(block)};
  return head_.read(blocks_[block].slot.bytes(), layout).has_value() &&
         head_.proves(layout, identity, hold_->proof(block)).has_value();
}

CopyJob::Step PromotionJob::step() noexcept {
  while (next_ < count_ && blocks_[next_].slot.extent->tier != Tier::host) ++next_;
  if (next_ == count_ || Clock::now() >= give_up_ || !hold_->alive()) return Step::done;
  const std::uint32_t at = next_;
  const Key& key = hold_->keys()[at];
  const auto& session = hold_->session();
  const bool promoted = session->directory().read(
      [&](const DirectoryView* view) { return view == nullptr || view->on_some_gpu(key); });
  if (promoted) {
    ++next_;
    return Step::more;
  }
  // What does not hold is for the load that needs it to report.
  if (ahead_ && !holds(at)) return Step::done;

  session::SlotPool& pool = hold_->ns().pool(Tier::device);
  auto slot = pool.take(Clock::now());
  session->refill(hold_->ns_ptr());
  if (!slot) return ahead_ ? Step::stuck : Step::done;
  ++next_;
  const bool copied = copy(blocks_[at].slot, slot->ref);
  // Only now is it known that the source did not change under the copy.
  if (!copied || !hold_->alive()) {
    session->put_back(hold_->ns_ptr(), Tier::device, std::move(*slot));
    return Step::done;
  }
  std::vector<session::FilledBlock> filled;
  filled.push_back(hold_->filled(at, std::move(*slot)));
  session->commit(std::move(filled));
  return Step::more;
}

}  // namespace kvtier::transfer
