#include "client/cuda/cuda_background.h"

#include "client/cuda/cuda_device.h"

namespace kvtier::transfer {

Background::Background(int device) : thread_([queue = queue_, device] { run(*queue, device); }) {}

Background::~Background() {
  {
    const std::lock_guard lock(queue_->mutex_);
    queue_->stopped_ = true;
  }
  queue_->posted_.notify_one();
  thread_.join();
}

void Background::Queue::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_) {
      tasks_.push_back(std::move(task));
      posted_.notify_one();
      return;
    }
  }
  task();
}

void Background::run(Queue& queue, int device) {
  const OnDevice on(device);
  std::unique_lock lock(queue.mutex_);
  while (true) {
    queue.posted_.wait(lock, [&] { return queue.stopped_ || !queue.tasks_.empty(); });
    if (queue.tasks_.empty()) return;
    auto task = std::move(queue.tasks_.front());
    queue.tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
}

}  // namespace kvtier::transfer
