// The state behind a Lease: blocks of a prefix that the daemon holds for us, on one connection.
//
// The session thread grants it and reports what landed; engine and copy threads ask. It is released
// at most once, and not before the last copy out of it has ended. One that is asked for without
// waiting (expect_answer()) is lost where the answer is no or comes too late; a late grant goes
// back.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "client/session/connection.h"
#include "client/session/extent_mapping.h"
#include "client/session/filled_block.h"
#include "client/session/namespace_entry.h"
#include "kvtier/prefix.h"

namespace kvtier::session {

class Session;

class HeldBlocks : public std::enable_shared_from_this<HeldBlocks> {
 public:
  enum class Presence : std::uint8_t { on_its_way, ready, failed };
  struct Block {
    Presence presence = Presence::on_its_way;
    Tier source = Tier::disk;
    SlotRef slot;
  };

  // Block 0 is the prefix's block `first`, the child of `before`.
  HeldBlocks(std::shared_ptr<Session> session, std::shared_ptr<NamespaceEntry> ns,
             std::uint32_t first, const Key& before, std::vector<Key> keys, Proofs proofs,
             std::uint32_t looked_up);
  ~HeldBlocks();

  NamespaceEntry& ns() const noexcept { return *ns_; }
  const std::shared_ptr<NamespaceEntry>& ns_ptr() const noexcept { return ns_; }
  const std::shared_ptr<Session>& session() const noexcept { return session_; }
  const std::vector<Key>& keys() const noexcept { return keys_; }
  Key parent(std::uint32_t block) const noexcept { return block == 0 ? before_ : keys_[block - 1]; }
  // In the prefix.
  std::uint32_t position(std::uint32_t block) const noexcept { return first_ + block; }
  std::span<const std::byte> proof(std::uint32_t block) const noexcept { return proofs_[block]; }
  // Block `block` in another slot, to which it was copied.
  FilledBlock filled(std::uint32_t block, ReservedSlot slot) const;

  // Blocks of the prompt that could have been cached, those not asked for too. 0: it is ahead of a
  // request that is still to come, and no lookup.
  std::uint32_t looked_up() const noexcept { return looked_up_; }

  // Session thread.
  void grant(std::shared_ptr<const Connection> connection, std::uint64_t id,
             std::vector<Block> blocks);
  // A slot without memory: the block failed. False if there is no such block.
  bool land(std::uint32_t block, SlotRef slot);
  void wake();  // the connection has ended
  // Of one that nobody waits for: the answer, once granted or with why not. False if nobody will
  // use it any more.
  bool answered(const Result<void>& answer);
  void expire();  // its deadline has passed

  // Any thread. Before it is asked for without waiting.
  void expect_answer();

  std::uint32_t blocks() const;
  Tier source(std::uint32_t block) const;
  // How many blocks came from each tier.
  std::array<std::uint32_t, kTiersWithRemote> sources() const;
  std::uint32_t wait_ready(Deadline deadline);
  std::optional<Clock::time_point> settled_at() const;
  std::vector<Block> snapshot() const;
  // As the public functions of the same names.
  LeaseState state() const;
  std::optional<Error> error() const;
  Result<int> event_fd();
  void on_settled(std::function<void()> callback);

  // Looked up blocks, hits and misses, once it is known what came of it.
  void count_lookup(bool granted) const;

  // Whether the daemon still holds the blocks, released by the engine or not.
  bool alive() const;
  bool held() const;
  void release();
  // Copies out of the blocks delay the release. False once it is on its way.
  bool begin_use();
  void end_use();
  // What a load found: of the first `looked_at` blocks the leading `usable` came in time and held.
  void note_usable(std::uint32_t usable, std::uint32_t looked_at);
  // The leading `blocks` were brought to the engine's pages, which took so long.
  void note_load(std::uint32_t blocks, std::chrono::steady_clock::duration took) const;
  // Counts the loss of this lease once.
  void note_loss();

 private:
  static constexpr std::uint32_t kAllUsable = ~0U;
  std::uint32_t leading_ready() const;
  bool lost() const;
  bool due() const;
  // Tells whoever is to be told that it is due, once. Ends the lock.
  void tell(std::unique_lock<std::mutex>& lock);
  void send_release(std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<Session> session_;
  const std::shared_ptr<NamespaceEntry> ns_;
  const std::uint32_t first_;
  const Key before_;
  const std::vector<Key> keys_;
  const Proofs proofs_;
  const std::uint32_t looked_up_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<const Connection> connection_;  // null until granted
  std::uint64_t id_ = 0;
  std::uint32_t term_ = 0;
  std::vector<Block> blocks_;
  std::uint32_t unsettled_ = 0;
  Clock::time_point settled_at_{};
  std::uint32_t uses_ = 0;
  bool released_ = false;
  bool release_sent_ = false;
  bool loss_noted_ = false;
  std::uint32_t usable_ = kAllUsable;
  bool asked_ = false;        // without waiting, and not answered yet
  std::optional<Error> why_;  // it was not granted, or too late
  bool overdue_ = false;
  bool told_ = false;
  UniqueFd event_;
  std::function<void()> callback_;
};

}  // namespace kvtier::session
