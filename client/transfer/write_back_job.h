// Packs blocks from an engine's pages into reserved slots and hands them to the session to commit:
// what is the same whichever processor copies, and the CPU's.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <vector>

#include "client/session/session.h"
#include "client/transfer/copy_queue.h"
#include "client/transfer/page_table.h"

namespace kvtier::transfer {

// Blocks queued for writing back, of one client. Bounded.
class WriteBackBudget {
 public:
  explicit WriteBackBudget(std::uint32_t blocks_max) : left_(blocks_max) {}
  // Takes up to `blocks`.
  std::uint32_t take(std::uint32_t blocks) noexcept;
  void give(std::uint32_t blocks) noexcept { left_.fetch_add(blocks); }

 private:
  std::atomic<std::uint32_t> left_;
};

class WriteBackJob : public CopyJob {
 public:
  struct Work {
    std::uint32_t first_block = 0;
    std::uint32_t blocks = 0;  // taken from the budget
    std::uint32_t answer_tokens = 0;
    // Until when a block without a slot waits for one; none: as long as it may linger.
    std::optional<Deadline> slots_by;
    Key before;             // the first block's parent
    std::vector<Key> keys;  // of `blocks` blocks
    Proofs proofs;          // likewise
    PageTable pages;        // its block 0 is first_block
  };

  WriteBackJob(std::shared_ptr<session::Session> session,
               std::shared_ptr<session::NamespaceEntry> ns, std::shared_ptr<WriteBackBudget> budget,
               Work work);

  // Nobody waits for slots any more: what has none now is dropped.
  void hurry() noexcept { hurried_.store(true); }
  bool waits_for_slots() const noexcept { return work_.slots_by.has_value(); }
  bool wait(Deadline deadline) noexcept;
  bool ended() noexcept;
  std::uint32_t accepted() const noexcept { return accepted_.load(); }
  std::uint32_t cached() const noexcept { return cached_.load(); }
  Drops dropped() const noexcept;

 protected:
  struct Slots {
    std::optional<session::ReservedSlot> host;
    std::optional<session::ReservedSlot> device;
  };
  enum class Taken { slots, cached, none, later };

  // Slots for block `block` of the work. `cached`: it needs none; `none`: it is dropped, and
  // counted; `later`: slots are on their way.
  Taken take_slots(std::uint32_t block, Slots& slots);
  // Header and proof of block `block` into `record`.
  void write_header_of(std::uint32_t block, std::span<std::byte> record) const;
  // The slots are filled: they are handed over with what settle() settles.
  void commit(std::uint32_t block, Slots slots);
  // Puts slots back that were not filled, and counts the block as dropped.
  void drop(Slots slots);
  // `blocks` more are off the queue, and what was committed of them is the session's; after the
  // last the job has ended.
  Step settle(std::uint32_t blocks) noexcept;
  std::uint32_t blocks() const noexcept { return work_.blocks; }
  const PageTable& pages() const noexcept { return work_.pages; }
  const session::NamespaceEntry& ns() const noexcept { return *ns_; }
  const RecordLayout& layout() const noexcept { return ns_->layout; }
  std::size_t layer_bytes(std::uint32_t layer) const noexcept { return ns_->layers[layer].bytes; }
  bool verify_loads() const noexcept;
  // Ends the job with what is not settled yet dropped: the client has closed.
  void drop_rest() noexcept;
  // Counts blocks as dropped.
  void note_dropped(DropReason why, std::uint32_t blocks = 1) noexcept;
  // A slot that was not filled.
  void put_back(Slots slots);
  // Nothing of the work is to be done.
  void forget() noexcept { budget_->give(work_.blocks); }

 private:
  bool is_cached(const Key& key) const noexcept;
  bool may_linger() noexcept;
  Key key_of(std::uint32_t block) const noexcept { return work_.keys[block]; }
  Key parent_of(std::uint32_t block) const noexcept;
  void end() noexcept;

  const std::shared_ptr<session::Session> session_;
  const std::shared_ptr<session::NamespaceEntry> ns_;
  const std::shared_ptr<WriteBackBudget> budget_;
  const Work work_;
  const Clock::time_point began_ = Clock::now();
  std::vector<session::FilledBlock> committed_;  // and not handed over yet
  std::uint32_t settled_ = 0;
  Deadline linger_until_{};  // none while blocks go on

  std::atomic<bool> hurried_{false};
  std::atomic<std::uint32_t> accepted_{0}, cached_{0};
  std::array<std::atomic<std::uint32_t>, kDropReasons> dropped_{};
  std::mutex mutex_;
  std::condition_variable ended_changed_;
  bool ended_ = false;
};

// From pages in host memory, a block a step.
class HostWriteBackJob final : public WriteBackJob {
 public:
  using WriteBackJob::WriteBackJob;
  Step step() noexcept override;
  void abandon() noexcept override { drop_rest(); }

 private:
  std::uint32_t next_ = 0;
};

}  // namespace kvtier::transfer
