// A thread for what takes the kernel long and nobody waits for: giving memory back, of which an
// extent may have gigabytes. Owned by the control thread, which hands work over and goes on.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

namespace kvtier::daemon {

class Disposal {
 public:
  Disposal() : thread_([this](const std::stop_token& stop) { work(stop); }) {}
  // Everything handed over is done first.
  ~Disposal() = default;
  Disposal(const Disposal&) = delete;

  void run(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    waiting_.notify_one();
  }

 private:
  void work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (!waiting_.wait(lock, stop, [this] { return !tasks_.empty(); })) return;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any waiting_;
  std::deque<std::function<void()>> tasks_;
  std::jthread thread_;  // last: it ends before what it works on
};

}  // namespace kvtier::daemon
