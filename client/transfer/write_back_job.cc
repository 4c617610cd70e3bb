#include "client/transfer/write_back_job.h"

#include <algorithm>
#include <cstring>

#include "client/session/limits.h"
#include "core/base/points.h"
#include "core/record/record.h"

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

bool WriteBackJob::verify_loads() const noexcept {
  return session_->verify_loads();
}

bool WriteBackJob::is_cached(const Key& key) const noexcept {
  return session_->directory().read([&](const DirectoryView* view) {
    return view != nullptr && !view->find(key).without(Tier::remote).empty();
  });
}

bool WriteBackJob::may_linger() noexcept {
  const auto now = Clock::now();
  if (work_.slots_by)
    return now < *work_.slots_by && !hurried_.load() && session_->may_get_slots(*ns_);
  if (!ns_->pool(Tier::host).hopeful(now) || hurried_.load()) return false;
  if (linger_until_ == Deadline{}) linger_until_ = now + session::kSlotLinger;
  return now < linger_until_;
}

WriteBackJob::Taken WriteBackJob::take_slots(std::uint32_t block, Slots& slots) {
  if (is_cached(key_of(block))) {
    cached_.fetch_add(1);
    return Taken::cached;
  }
  // Read before the slots: a slot that comes after "none expected" was asked for later.
  const bool linger = may_linger();
  // Without a host slot the block is dropped: kept in device memory alone it could not go to disk,
  // and with it would go the use of all blocks behind it.
  const auto now = Clock::now();
  slots = {ns_->pool(Tier::host).take(now), {}};
  if (slots.host) slots.device = ns_->pool(Tier::device).take(now);
  session_->refill(ns_);
  // The connection changed between the two.
  if (slots.host && slots.device && slots.host->connection != slots.device->connection) {
    slots.device.reset();
  }
  if (!slots.host) {
    // Or one was asked for just now.
    if (linger || may_linger()) return Taken::later;
    note_dropped(session_->connected() ? DropReason::no_slot : DropReason::disconnected);
    return Taken::none;
  }
  linger_until_ = {};
  return Taken::slots;
}

Key WriteBackJob::parent_of(std::uint32_t block) const noexcept {
  return block == 0 ? work_.before : work_.keys[block - 1];
}

void WriteBackJob::write_header_of(std::uint32_t block, std::span<std::byte> record) const {
  write_header(record, ns_->layout,
               {ns_->id, key_of(block), parent_of(block), work_.first_block + block},
               work_.proofs[block]);
}

void WriteBackJob::commit(std::uint32_t block, Slots slots) {
  const auto proof = work_.proofs[block];
  session::FilledBlock filled{
      ns_, key_of(block), parent_of(block), work_.first_block + block, {proof.begin(), proof.end()},
      {}};
  filled.prompt_blocks = work_.first_block + static_cast<std::uint32_t>(work_.keys.size());
  filled.answer_tokens = work_.answer_tokens;
  // The host's first: kvtierd takes a slot that it cannot read only beside one that it can.
  for (auto* slot : {&slots.host, &slots.device}) {
    if (*slot) filled.slots.push_back(std::move(**slot));
  }
  if (!filled.slots.front().connection->alive()) {
    note_dropped(DropReason::disconnected);
    return;
  }
  committed_.push_back(std::move(filled));
}

void WriteBackJob::put_back(Slots slots) {
  if (slots.host) session_->put_back(ns_, Tier::host, std::move(*slots.host));
  if (slots.device) session_->put_back(ns_, Tier::device, std::move(*slots.device));
}

void WriteBackJob::drop(Slots slots) {
  put_back(std::move(slots));
  note_dropped(DropReason::failed);
}

void WriteBackJob::note_dropped(DropReason why, std::uint32_t blocks) noexcept {
  dropped_[static_cast<std::size_t>(why)].fetch_add(blocks);
  session_->note_dropped(why, blocks);
}

Drops WriteBackJob::dropped() const noexcept {
  Drops drops;
  for (std::size_t i = 0; i < kDropReasons; ++i) drops.blocks[i] = dropped_[i].load();
  return drops;
}

CopyJob::Step WriteBackJob::settle(std::uint32_t blocks) noexcept {
  if (const auto count = static_cast<std::uint32_t>(committed_.size()); count > 0) {
    session_->commit(std::exchange(committed_, {}));
    Counters::add(session_->counters().written, count);
    accepted_.fetch_add(count);
  }
  budget_->give(blocks);
  settled_ += blocks;
  if (settled_ < work_.blocks) return Step::more;
  end();
  return Step::done;
}

void WriteBackJob::drop_rest() noexcept {
  const std::uint32_t left = work_.blocks - settled_;
  if (left == 0) return;  // it has ended
  note_dropped(DropReason::disconnected, left);
  budget_->give(left);
  end();
}

void WriteBackJob::end() noexcept {
  if (const std::uint64_t blocks = accepted(); blocks > 0)
    session_->counters().write_backs.add(Clock::now() - began_, blocks * layout().record_bytes);
  const std::lock_guard lock(mutex_);
  ended_ = true;
  ended_changed_.notify_all();
}

bool WriteBackJob::wait(Deadline deadline) noexcept {
  std::unique_lock lock(mutex_);
  return ended_changed_.wait_until(lock, deadline, [&] { return ended_; });
}

bool WriteBackJob::ended() noexcept {
  const std::lock_guard lock(mutex_);
  return ended_;
}

CopyJob::Step HostWriteBackJob::step() noexcept {
  const std::uint32_t block = next_;
  Slots slots;
  const Taken taken = take_slots(block, slots);
  if (taken == Taken::later) return Step::stuck;
  ++next_;
  if (taken == Taken::slots) {
    const auto record = slots.host->ref.bytes().first(layout().record_bytes);
    write_header_of(block, record);
    pages().store(block, record.data());
    if (verify_loads()) (void)seal_checksums(record);  // its header is ours, so it fits
    KVTIER_POINT("client.write_back.stored");
    if (slots.device) {
      std::memcpy(slots.device->ref.bytes().data(), record.data(), record.size());
    }
    commit(block, std::move(slots));
  }
  return settle(1);
}

}  // namespace kvtier::transfer
