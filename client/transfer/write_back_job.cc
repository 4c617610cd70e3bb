#include "client/transfer/write_back_job.h"

#include <algorithm>
#include <cstring>

#include "client/record/record.h"
#include "client/session/limits.h"

namespace kvtier::transfer {

using session::Counters;
using session::ReservedSlot;

std::uint32_t WriteBackBudget::take(std::uint32_t blocks) noexcept {
  std::uint32_t left = left_.load();
  while (!left_.compare_exchange_weak(left, left - std::min(left, blocks))) {
  }
  return std::min(left, blocks);
}

WriteBackJob::WriteBackJob(std::shared_ptr<session::Session> session,
                           std::shared_ptr<session::NamespaceEntry> ns,
                           std::shared_ptr<WriteBackBudget> budget, Work work)
    : session_(std::move(session)),
      ns_(std::move(ns)),
      budget_(std::move(budget)),
      work_(std::move(work)) {
  ended_ = work_.blocks == 0;
}

bool WriteBackJob::cached(const Key& key) const noexcept {
  return session_->directory().read(
      [&](const DirectoryView* view) { return view != nullptr && !view->find(key).empty(); });
}

WriteBackJob::Slots WriteBackJob::take_slots() {
  // Without a host slot the block is dropped: kept in device memory alone it could not go to disk,
  // and with it would go the use of all blocks behind it.
  Slots slots{ns_->pool(Tier::host).take(), {}};
  if (slots.host) slots.device = ns_->pool(Tier::device).take();
  session_->refill(ns_);
  // The connection changed between the two.
  if (slots.host && slots.device && slots.host->connection != slots.device->connection) {
    slots.device.reset();
  }
  return slots;
}

bool WriteBackJob::may_linger() noexcept {
  if (!ns_->pool(Tier::host).expected() || hurried_.load()) return false;
  const auto now = Clock::now();
  if (linger_until_ == Deadline{}) linger_until_ = now + session::kSlotLinger;
  return now < linger_until_;
}

CopyJob::Step WriteBackJob::step() noexcept {
  const Key& key = work_.keys[work_.first_block + done_];
  if (cached(key)) return next();
  // Read before the slots: a slot that comes after "none expected" was asked for later.
  const bool linger = may_linger();
  Slots slots = take_slots();
  if (!slots.host) {
    if (linger) return Step::stuck;
    Counters::add(session_->counters().dropped);
    return next();
  }
  linger_until_ = {};
  fill_and_commit(std::move(slots));
  return next();
}

void WriteBackJob::fill_and_commit(Slots slots) {
  const RecordLayout& layout = ns_->layout;
  const std::uint32_t block = work_.first_block + done_;
  const Key parent = block == 0 ? Key{} : work_.keys[block - 1];
  const auto tokens = std::span(work_.tokens)
                          .subspan(std::size_t{done_} * layout.block_tokens, layout.block_tokens);
  const auto record = slots.host->ref.bytes().first(layout.record_bytes);
  write_header(record, layout, {ns_->id, work_.keys[block], parent, block}, tokens);
  work_.pages.store(done_, record.data());
  if (slots.device) {
    std::memcpy(slots.device->ref.bytes().data(), record.data(), record.size());
  }
  session::FilledBlock filled{ns_, work_.keys[block], parent, block, {tokens.begin(), tokens.end()},
                              {}};
  for (auto* slot : {&slots.device, &slots.host}) {
    if (*slot) filled.slots.push_back(std::move(**slot));
  }
  if (!filled.slots.front().connection->alive()) {
    Counters::add(session_->counters().dropped);
    return;
  }
  session_->commit(std::move(filled));
  Counters::add(session_->counters().written);
  accepted_.fetch_add(1);
}

CopyJob::Step WriteBackJob::next() noexcept {
  budget_->give(1);
  if (++done_ < work_.blocks) return Step::more;
  end();
  return Step::done;
}

void WriteBackJob::abandon() noexcept {
  const std::uint32_t left = work_.blocks - done_;
  Counters::add(session_->counters().dropped, left);
  budget_->give(left);
  end();
}

void WriteBackJob::end() noexcept {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  ended_changed_.notify_all();
}

void WriteBackJob::wait() noexcept {
  std::unique_lock lock(mutex_);
  ended_changed_.wait(lock, [&] { return ended_; });
}

}  // namespace kvtier::transfer
