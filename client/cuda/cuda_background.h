// A thread for what may wait for the whole device: pinning and unpinning memory, unmapping it. What
// posts to it may outlive it: once it has stopped, tasks run where they are posted.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace kvtier::transfer {

class Background {
 public:
  explicit Background(int device);
  // Runs what was posted, then ends the thread.
  ~Background();

  // Where tasks go. Kept by those who outlive the thread.
  class Queue {
   public:
    void post(std::function<void()> task);

   private:
    friend class Background;
    std::mutex mutex_;
    std::condition_variable posted_;
    std::deque<std::function<void()>> tasks_;
    bool stopped_ = false;
  };
  const std::shared_ptr<Queue>& queue() const noexcept { return queue_; }

 private:
  static void run(Queue& queue, int device);

  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  std::thread thread_;
};

}  // namespace kvtier::transfer
