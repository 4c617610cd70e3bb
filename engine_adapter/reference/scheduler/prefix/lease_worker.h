// Leases are asked for on a thread of their own: the daemon may take as long as a request's
// deadline to answer, and steps go on meanwhile.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "kvtier/client.h"

namespace kvtier::engine {

// One question. The asker reads `answer` once `answered` is set, and may lose interest before.
// Where it only looks up, what is there is to be matched then: the answer says nothing.
struct LeaseTicket {
  bool looks_up = false;
  std::shared_ptr<Cache> cache;
  std::vector<Token> tokens;
  BlockRange range;
  Deadline deadline;
  std::atomic<bool> given_up{false};

  std::atomic<bool> answered{false};
  std::optional<Result<Lease>> answer;
};

class LeaseWorker {
 public:
  virtual ~LeaseWorker() = default;
  virtual void ask(std::shared_ptr<LeaseTicket> ticket) = 0;
  // Whether the last question was not answered in time. Any thread.
  bool silent() const noexcept { return silent_.load(std::memory_order_relaxed); }

 protected:
  void ask_now(LeaseTicket& ticket);

 private:
  std::atomic<bool> silent_{false};
};

// Asks at once, on the caller's thread.
class DirectLeases final : public LeaseWorker {
 public:
  void ask(std::shared_ptr<LeaseTicket> ticket) override { ask_now(*ticket); }
};

class ThreadLeases final : public LeaseWorker {
 public:
  // `answered` is called on the thread after each answer.
  explicit ThreadLeases(std::function<void()> answered);
  // What was not answered yet never will be.
  ~ThreadLeases() override;
  void ask(std::shared_ptr<LeaseTicket> ticket) override;

 private:
  void run();

  const std::function<void()> answered_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<LeaseTicket>> tickets_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvtier::engine
