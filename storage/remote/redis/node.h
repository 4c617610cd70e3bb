// One server: a connection for questions, some for records, what waits for them, and what is known
// of its health. Owned by Servers, on the store's thread.
//
// It is asked for nothing before its first probe has been answered, and nothing is begun on it
// while it is unusable. A connection with an operation that is late is closed; what else was on it
// is asked again.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "storage/remote/redis/connection.h"
#include "storage/remote/redis/redis_context.h"
#include "storage/remote/redis/server_error.h"

struct pollfd;

namespace kvtier::storage {

class RedisNode {
 public:
  RedisNode(RedisContext& context, OperationOwner& owner, RemoteAddress at);
  RedisNode(const RedisNode&) = delete;
  RedisNode& operator=(const RedisNode&) = delete;

  const RemoteAddress& address() const noexcept { return at_; }

  // Takes an operation to do when it can. While it is being connected for the first time too.
  void take(OperationPtr operation);
  // One of its operations is late: nothing touches its memory when this returns.
  void take_back(const Operation& operation);

  // Whether anything can be asked of it; whether it takes writes.
  bool readable() const noexcept {
    return up_ && probed_ && reads_fail_.empty() && lanes_fail_.empty();
  }
  bool writable() const noexcept { return readable() && writes_fail_.empty(); }
  // It is not known yet whether it can be used.
  bool being_tried() const noexcept { return !failed_once_ && !(up_ && probed_); }
  // What is wrong, with its address and the mend; empty: nothing is.
  std::string trouble() const;
  bool is_up() const noexcept { return up_; }
  bool has_probe() const noexcept { return probe_name_.has_value(); }
  const std::optional<std::string>& probe_name() const noexcept { return probe_name_; }

  void note_reads_fail(const std::string& why);
  void note_writes_fail(const std::string& why);
  // The key that it is probed with lies in a slot that it serves; none: it serves none.
  void set_probe(std::optional<std::string> name);
  // With the next turn.
  void ask_slots() { slots_wanted_ = true; }

  // Timers of its own: connects, probes, sends what waits. Then `poll` gets what to wait for.
  void turn();
  void add_polls(std::vector<pollfd>& polls) const;
  // As many of what poll() found as add_polls() added.
  std::size_t polled(const pollfd* found);
  Deadline next_turn() const noexcept { return next_turn_; }
  bool has_more() const noexcept;
  std::uint32_t connections() const noexcept;

  // Everything that waits or is under way, answered as lost.
  void give_up(const std::string& why);

 private:
  struct Lane {
    Connection connection;
    bool connected = false;
    bool ready = false;  // it has answered its greeting
    Clock::time_point since{}, retry_at{};
    std::chrono::milliseconds backoff{0};
  };

  Lane& questions() noexcept { return lanes_.front(); }
  void connect(Lane& lane);
  void advance(Lane& lane);
  void greet(Lane& lane);
  void be_up();
  void fail(Lane& lane, const std::string& why);
  void close(Lane& lane, const std::string& why);
  bool is_wanted(const Lane& lane) const noexcept;
  void check_silence(Lane& lane);
  void set_next_turn();
  void look_after();
  void probe();
  void note_ready(Lane& lane);
  void take_own(Lane& lane, const Operation& operation, Answer answer);
  void take_probe(const Operation& operation, const Answer& answer);
  void dispatch();
  bool start(std::deque<OperationPtr>& queue, std::size_t lanes);
  bool prepare(OperationPtr& operation);
  void lose(const OperationPtr& operation, const std::string& why);
  void lose_waiting(const std::string& why);
  void ask_again(std::vector<OperationPtr> operations, const std::string& why);
  OperationPtr own(Operation::Kind kind);

  RedisContext& context_;
  OperationOwner& owner_;
  const RemoteAddress at_;
  std::vector<SocketAddress> addresses_;
  bool finding_ = false;
  std::size_t next_address_ = 0;
  std::vector<Lane> lanes_;  // the first is for questions
  // Found by what comes back from the name service, which may be after the node is gone.
  std::shared_ptr<RedisNode*> self_ = std::make_shared<RedisNode*>(this);

  std::deque<OperationPtr> questions_, reads_, writes_;
  bool up_ = false, probed_ = false, failed_once_ = false, slots_wanted_ = false;
  std::string connect_fails_, lanes_fail_, reads_fail_, writes_fail_;
  std::optional<std::string> probe_name_;
  unsigned probes_under_way_ = 0;
  std::string probe_reads_, probe_writes_;  // what the probe that is under way found
  Clock::time_point probe_at_{}, ping_at_{};
  std::chrono::milliseconds probe_backoff_{0};
  Deadline next_turn_{};
};

}  // namespace kvtier::storage
