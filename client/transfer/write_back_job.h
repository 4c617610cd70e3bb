// Packs blocks from an engine's pages into reserved slots and hands them to the session to commit.
#pragma once

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
    std::uint32_t blocks = 0;   // taken from the budget
    std::vector<Key> keys;      // of the prefix up to the last block
    std::vector<Token> tokens;  // of `blocks` blocks
    PageTable pages;            // page 0 is first_block
  };

  WriteBackJob(std::shared_ptr<session::Session> session,
               std::shared_ptr<session::NamespaceEntry> ns, std::shared_ptr<WriteBackBudget> budget,
               Work work);

  Step step() noexcept override;
  void abandon() noexcept override;

  // Nobody waits for slots any more: what has none now is dropped.
  void hurry() noexcept { hurried_.store(true); }
  void wait() noexcept;
  std::uint32_t accepted() const noexcept { return accepted_.load(); }

 private:
  struct Slots {
    std::optional<session::ReservedSlot> host;
    std::optional<session::ReservedSlot> device;
  };

  bool cached(const Key& key) const noexcept;
  Slots take_slots();
  bool may_linger() noexcept;
  void fill_and_commit(Slots slots);
  Step next() noexcept;
  void end() noexcept;

  const std::shared_ptr<session::Session> session_;
  const std::shared_ptr<session::NamespaceEntry> ns_;
  const std::shared_ptr<WriteBackBudget> budget_;
  const Work work_;
  std::uint32_t done_ = 0;
  Deadline linger_until_{};  // none while blocks go on

  std::atomic<bool> hurried_{false};
  std::atomic<std::uint32_t> accepted_{0};
  std::mutex mutex_;
  std::condition_variable ended_changed_;
  bool ended_ = false;
};

}  // namespace kvtier::transfer
