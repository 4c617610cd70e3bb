// The copy thread: one thread that moves bytes, a step at a time, always of the most urgent job.
// Engines wait for its jobs; it waits for nobody but, for a bounded time, for slots.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "kvtier/client.h"

namespace kvtier::transfer {

class CopyJob {
 public:
  enum class Step { more, stuck, done };

  virtual ~CopyJob() = default;
  // A small piece of the work. `stuck`: nothing can be done now; it is asked again on wake() or
  // soon.
  virtual Step step() noexcept = 0;
  // Whether all that is left of the work is under way elsewhere, and step() will wait for it.
  virtual bool all_under_way() const noexcept { return false; }
  // Sets under way what may go beside the job in front, all of which is. Waits for nothing.
  virtual void begin() noexcept {}
  // Ends the job undone, and wakes who waits for it. Called instead of further steps.
  virtual void abandon() noexcept = 0;
};

class CopyQueue {
 public:
  enum class Priority { load, write_back, promotion };

  ~CopyQueue();
  void start();
  // Abandons what is queued and ends the thread. Once.
  void stop();

  // False if `at_most` jobs of this priority are queued already, or the queue has stopped.
  bool push(Priority priority, std::shared_ptr<CopyJob> job, std::size_t at_most);
  // Something that a stuck job may wait for has happened.
  void wake();
  // Waits until all jobs of `priority` queued before have ended. False if the deadline passed
  // first.
  bool drain(Priority priority, Deadline deadline);

 private:
  static constexpr std::size_t kPriorities = 3;
  struct Line {
    std::deque<std::shared_ptr<CopyJob>> jobs;
    std::uint64_t pushed = 0;
    std::uint64_t ended = 0;
  };

  void run();
  // Whether any job got on.
  bool step_one(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable ended_;
  std::array<Line, kPriorities> lines_;
  std::uint64_t wakes_ = 0;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace kvtier::transfer
