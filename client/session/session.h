// The session with the daemon: one thread that owns the socket, keeps it connected, and alone
// speaks on it.
//
// Public functions may be called from any thread and, but for those with a deadline, never wait.
// When the connection ends, everything that was waiting for it fails with `unavailable` at once;
// namespaces are opened again by themselves on the next one. Does not survive fork(): nothing of it
// is touched in the child (core/base/fork_mark.h).
//
// What the thread does is done by its parts (client/session/thread/), each of which says what it
// holds to; the session owns and wires them, connects, and has the turn.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "client/session/counters.h"
#include "client/session/directory_snapshot.h"
#include "client/session/filled_block.h"
#include "client/session/gpu_memory.h"
#include "client/session/held_blocks.h"
#include "client/session/log.h"
#include "client/session/mailbox.h"
#include "client/session/thread/commits.h"
#include "client/session/thread/conversation.h"
#include "client/session/thread/flushes.h"
#include "client/session/thread/hints.h"
#include "client/session/thread/leases.h"
#include "client/session/thread/mapped_extents.h"
#include "client/session/thread/namespaces.h"
#include "client/session/thread/reports.h"
#include "client/session/thread/slot_exchange.h"

namespace kvtier::session {

class Session : public std::enable_shared_from_this<Session> {
 public:
  // `slots_changed` is called on the session thread when slots came or will not come; `wake_fd` is
  // an eventfd; `gpu` is null for a client without one; a daemon that owes an answer and is silent
  // for `answer_max` is taken for dead.
  Session(ClientOptions options, UniqueFd wake_fd, std::function<void()> slots_changed,
          std::shared_ptr<GpuMemory> gpu, std::chrono::milliseconds answer_max);
  ~Session();

  void start();
  // Hands back what can be handed back, wakes every waiter, and ends the thread. Once.
  void close();

  bool connected() const noexcept { return connected_.load(); }
  // Asked for, or decided by the daemon at the last welcome.
  bool read_only() const noexcept { return read_only_.load(std::memory_order_relaxed); }
  bool verify_loads() const noexcept { return options_.verify_loads; }
  Result<void> wait_connected(Deadline deadline);
  std::shared_ptr<NamespaceEntry> open(const Namespace& ns);
  // As Cache::state() and wait_open().
  Result<void> state(const NamespaceEntry& ns) const;
  Result<void> wait_open(const NamespaceEntry& ns, Deadline deadline);
  // Whether slots may come for a block that has none.
  bool may_get_slots(const NamespaceEntry& ns) const noexcept;
  // Nobody uses the namespace any more, as far as NamespaceEntry::users says so: its idle slots are
  // given back.
  void give_back_if_unused(const std::shared_ptr<NamespaceEntry>& ns);
  // A slot that was taken and not used.
  void put_back(const std::shared_ptr<NamespaceEntry>& ns, Tier tier, ReservedSlot slot);

  // Errors: deadline, unavailable, refused.
  Result<void> lease(const std::shared_ptr<HeldBlocks>& hold, Deadline deadline);
  // Does not wait; the lease is told. Errors: unavailable.
  Result<void> lease_async(const std::shared_ptr<HeldBlocks>& hold, Deadline deadline);
  // Whether there is a remote tier to look_up() in.
  bool has_remote() const noexcept {
    return connected() && has_remote_.load(std::memory_order_relaxed);
  }
  // Of a prefix's leading blocks. The directory has what came of it. Errors: as lease().
  Result<void> look_up(const std::shared_ptr<NamespaceEntry>& ns, std::vector<Key> keys,
                       Deadline deadline);
  // `usable`: how many of the leading blocks were of use; none given: all.
  void release(const std::shared_ptr<const Connection>& connection, std::uint64_t lease,
               std::optional<std::uint32_t> usable);
  void commit(std::vector<FilledBlock> blocks);
  // At most wire::kLeaseBlocksMax keys; `first`: the number of the first in its prefix. Errors:
  // no_space, unavailable.
  Result<void> hint(const std::shared_ptr<NamespaceEntry>& ns, std::uint32_t first,
                    std::vector<Key> keys, const Hint& hint);
  // Asks for slots where fewer than half of those wanted are at hand.
  void refill(const std::shared_ptr<NamespaceEntry>& ns);
  // The daemon is told soon to forget `key`.
  void report_bad(const Key& key);
  // Returns with every commit before it durable and, where the daemon has room, slots at hand.
  Result<void> flush(Deadline deadline);

  const DirectorySnapshot& directory() const noexcept { return directory_; }
  Counters& counters() noexcept { return counters_; }
  Log& log() noexcept { return log_; }
  // Counts and logs blocks that were not written back.
  void note_dropped(DropReason why, std::uint64_t blocks);

 private:
  // Everything below runs on the session thread. session.cc: the turn.
  void run();
  void turn();
  void take_mail();
  int timeout_ms(Clock::time_point now) const;
  void finish_closing();

  // session_connection.cc: from connecting to the end of a connection, and what comes on it.
  void connect(Clock::time_point now);
  void say_hello();
  Result<void> welcome(wire::Frame& frame, wire::Message::Reader message);
  void drop(const Error& why);
  Error last_words(const Error& otherwise);
  void fail_everything(const Error& why);
  Result<void> receive();
  Result<void> check_answers();
  Result<void> handle(wire::Frame& frame);
  Result<void> handle_reply(wire::Frame& frame, std::uint64_t id);
  Result<void> handle_event(wire::Frame& frame, wire::Message::Reader message);
  void close_namespace(std::uint32_t handle);
  // Whoever waits for a connection or a namespace looks again.
  void announce();
  Result<void> state_locked(const NamespaceEntry& ns) const;

  const ClientOptions options_;
  const std::function<void()> slots_changed_;
  const std::uint64_t client_id_;
  std::thread thread_;
  Counters counters_;
  Log log_;
  DirectorySnapshot directory_;
  Mailbox mailbox_;
  std::atomic<bool> connected_{false};
  std::atomic<bool> read_only_;
  std::atomic<bool> has_remote_{false};  // the daemon of the last welcome

  mutable std::mutex mutex_;  // what wait_connected() and wait_open() wait for and tell
  std::condition_variable state_changed_;
  Error last_failure_{Errc::unavailable, "no attempt was made yet"};
  bool closing_ = false;

  Conversation conversation_;
  MappedExtents extents_;
  Namespaces namespaces_;
  Leases leases_;
  SlotExchange slots_;
  Flushes flushes_;
  Commits commits_;
  Reports reports_;
  Hints hints_;
  std::atomic<std::uint32_t> hints_queued_{0};

  bool close_asked_ = false;
  Clock::time_point hello_sent_{};
  Clock::time_point welcomed_at_{};
  Clock::time_point next_attempt_{};
  std::chrono::milliseconds delay_;
  std::minstd_rand jitter_{std::random_device{}()};
};

}  // namespace kvtier::session
