// The session with the daemon: one thread that owns the socket, keeps it connected, and alone
// speaks on it.
//
// Public functions may be called from any thread and, but for those with a deadline, never wait.
// When the connection ends, everything that was waiting for it fails with `unavailable` at once;
// namespaces are opened again by themselves on the next one. Does not survive fork(): nothing of it
// is touched in the child (core/base/fork_mark.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "client/session/counters.h"
#include "client/session/directory_snapshot.h"
#include "client/session/gpu_memory.h"
#include "client/session/held_blocks.h"
#include "client/session/outcome.h"
#include "core/wire/control_socket.h"

namespace kvtier::session {

// A block whose bytes are in its slots.
struct FilledBlock {
  std::shared_ptr<NamespaceEntry> ns;
  Key key;
  Key parent;
  std::uint32_t block_index = 0;
  std::vector<Token> tokens;
  std::vector<ReservedSlot> slots;  // one a tier, all of one connection
};

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
  // Nobody uses the namespace any more, as far as NamespaceEntry::users says so: its idle slots are
  // given back.
  void give_back_if_unused(const std::shared_ptr<NamespaceEntry>& ns);
  // A slot that was taken and not used.
  void put_back(const std::shared_ptr<NamespaceEntry>& ns, Tier tier, ReservedSlot slot);

  // Errors: deadline, unavailable, refused.
  Result<void> lease(const std::shared_ptr<HeldBlocks>& hold, Deadline deadline);
  // `usable`: how many of the leading blocks were of use; none given: all.
  void release(const std::shared_ptr<const Connection>& connection, std::uint64_t lease,
               std::optional<std::uint32_t> usable);
  void commit(FilledBlock block);
  // Asks for slots where fewer than half of those wanted are at hand.
  void refill(const std::shared_ptr<NamespaceEntry>& ns);
  // The daemon is told soon to forget `key`.
  void report_bad(const Key& key);
  // Returns with every commit before it durable and, where the daemon has room, slots at hand.
  Result<void> flush(Deadline deadline);

  const DirectorySnapshot& directory() const noexcept { return directory_; }
  Counters& counters() noexcept { return counters_; }

 private:
  using Fill = std::function<void(wire::Message::Builder)>;
  // Runs on the session thread exactly once; an error it returns ends the connection.
  using Done = std::function<Result<void>(Result<wire::Message::Reader>)>;
  enum class Patience { bounded, unbounded };
  struct Pending {
    Done done;
    Patience patience;
    Clock::time_point asked;
  };

  struct Flush {
    std::shared_ptr<Outcome> outcome;
    Clock::time_point settled_by{};  // once it is done but for slots on their way
  };

  bool post(std::function<void()> task);
  void wake() noexcept;

  // Everything below runs on the session thread.
  void run();
  void turn();
  void take_mail();
  int timeout_ms(Clock::time_point now) const;
  void finish_closing();

  void connect(Clock::time_point now);
  void say_hello();
  Result<void> welcome(wire::Frame& frame, wire::Message::Reader message);
  Result<void> recall_extents(wire::Welcome::Reader welcome);
  void let_go_of_old_slots();
  void drop(const Error& why);
  Error last_words(const Error& otherwise);
  void fail_everything(const Error& why);
  Result<void> receive();
  Result<void> handle(wire::Frame& frame);
  Result<void> handle_reply(wire::Frame& frame, std::uint64_t id);
  Result<void> handle_event(wire::Frame& frame, wire::Message::Reader message);
  Result<std::shared_ptr<const ExtentMapping>> mapping_of(wire::Frame& frame,
                                                          wire::Extent::Reader extent);
  Result<void> map_extent(wire::Frame& frame, wire::Extent::Reader extent);
  Result<void> land(wire::Ready::Reader ready);
  void close_namespace(std::uint32_t handle);
  void recall(wire::Recall::Reader recall);
  void shed_idle(Clock::time_point now);
  void send();
  Result<void> check_answers();
  bool overdue() const;

  void tell(const Fill& fill);
  void ask(const Fill& fill, Done done, Patience patience = Patience::bounded);

  void open_on_daemon(const std::shared_ptr<NamespaceEntry>& ns);
  void with_handle(NamespaceEntry& ns, std::function<void(Result<std::uint32_t>)> use);
  void ask_lease(std::uint32_t handle, const std::shared_ptr<HeldBlocks>& hold,
                 const std::shared_ptr<Outcome>& outcome);
  Result<void> take_lease(wire::Leased::Reader leased, const std::shared_ptr<HeldBlocks>& hold,
                          const std::shared_ptr<Outcome>& outcome);
  void ask_slots(const std::shared_ptr<NamespaceEntry>& ns, Tier tier, std::uint32_t count);
  Result<void> take_slots(NamespaceEntry& ns, Tier tier, std::uint32_t asked,
                          Result<wire::Message::Reader> reply);
  void add_flush(Flush flush);
  void ask_flush();
  void end_flushes(std::vector<Flush> flushes, const Result<void>& result);
  bool slots_on_their_way() const;
  void settle_flushes(Clock::time_point now);
  std::vector<std::shared_ptr<NamespaceEntry>> all_namespaces() const;
  void send_commits(std::vector<FilledBlock> blocks);
  void send_commit_frame(std::span<const FilledBlock> blocks);
  void send_report(Clock::time_point now);
  void fill_report(wire::Report::Builder report);
  void abandon(const std::vector<ReservedSlot>& slots);
  void abandon_pools();
  // None: see lies_in_unmapped().
  SlotRef resolve(std::uint64_t name, std::uint64_t record_bytes) const;
  bool lies_in_unmapped(std::uint64_t name) const {
    return unmapped_.contains(static_cast<std::uint32_t>(name >> 32));
  }

  const ClientOptions options_;
  const std::function<void()> slots_changed_;
  const std::shared_ptr<GpuMemory> gpu_;
  const std::chrono::milliseconds answer_max_;
  UniqueFd wake_fd_;
  std::thread thread_;
  Counters counters_;
  DirectorySnapshot directory_;
  std::atomic<bool> connected_{false};
  std::atomic<bool> read_only_;

  mutable std::mutex mutex_;  // the mailbox and what engine threads ask about
  std::condition_variable state_changed_;
  std::vector<std::function<void()>> tasks_;
  std::vector<FilledBlock> commits_;
  std::vector<Key> bad_keys_;
  std::vector<std::shared_ptr<NamespaceEntry>> namespaces_;
  std::string last_failure_ = "no attempt was made yet";
  bool closing_ = false;

  ControlSocket socket_;
  std::shared_ptr<Connection> connection_;  // from welcome on
  std::map<std::uint64_t, Pending> pending_;
  std::uint64_t last_id_ = 0;
  std::vector<Flush> flushes_;  // for the next request: one is out at a time
  bool flushing_ = false;
  std::vector<Flush> settling_;  // done, but for slots on their way
  std::unordered_map<std::uint64_t, std::weak_ptr<HeldBlocks>> leases_;
  // Outlive the connection: the next daemon may have the same extents.
  std::unordered_map<std::uint32_t, std::shared_ptr<const ExtentMapping>> extents_;
  std::vector<std::byte> lineage_;  // that gives their ids a meaning
  Clock::time_point extents_until_{};
  // Of this connection, that could not be mapped: their blocks are misses.
  std::unordered_set<std::uint32_t> unmapped_;
  const std::uint64_t client_id_;
  // ReservedSlot::right: of this connection, and of those before it whose slots may still be
  // written to.
  std::shared_ptr<const void> right_;
  std::vector<std::weak_ptr<const void>> old_rights_;
  bool owes_let_go_ = false;
  std::uint32_t slots_asked_ = 0;  // requests for slots that wait for an answer
  bool gpu_tier_ = true;           // false: memory of the GPU could not be mapped, so we do without
  std::optional<Error> broken_;    // found while sending; dropped at the end of the turn
  bool close_asked_ = false;
  bool report_soon_ = false;
  Clock::time_point hello_sent_{};
  Clock::time_point welcomed_at_{};
  Clock::time_point last_received_{};
  Clock::time_point next_report_{};
  std::optional<Clock::time_point> next_shed_;  // a look for slots that lie idle
  Clock::time_point next_attempt_{};
  std::chrono::milliseconds delay_;
  std::minstd_rand jitter_{std::random_device{}()};
  // What the daemon has been told.
  struct ReportedTiming {
    std::array<std::uint64_t, kLog2Buckets + 1> buckets{};
    std::uint64_t sum_us = 0, bytes = 0;
  };
  struct {
    std::uint64_t header_faults = 0, proof_faults = 0, checksum_faults = 0;
    std::array<std::uint64_t, kDropReasons> dropped{};
    std::array<ReportedTiming, kTiers> loads;
    ReportedTiming write_backs;
  } reported_;
  static void report(const Timing& timing, ReportedTiming& told, wire::Report::Timing::Builder to);
};

}  // namespace kvtier::session
