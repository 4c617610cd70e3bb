#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "kernels/cpu/support.h"
#include "kernels/table.h"

namespace kvtier::kernels {
namespace {

constexpr unsigned kThreadsMax = 256;
// Below this many multiply-adds (some 20 us of one core) waking a thread costs more than it saves.
constexpr std::size_t kWorkMin = 1U << 20;

std::atomic<unsigned> thread_limit{0};

unsigned threads_allowed() noexcept {
  const unsigned limit = thread_limit.load(std::memory_order_relaxed);
  const unsigned wanted = limit != 0 ? limit : std::thread::hardware_concurrency();
  return std::clamp(wanted, 1U, kThreadsMax);
}

// Lives on its caller's stack; `helpers` and the links are guarded by the pool's mutex.
struct Job {
  TaskFunction function;
  const void* context;
  std::size_t tasks;
  unsigned helpers_wanted;
  std::atomic<std::size_t> next{0};
  unsigned helpers = 0;
  Job* following = nullptr;

  void run() {
    for (;;) {
      const std::size_t task = next.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks) return;
      function(context, task);
    }
  }
  bool wants_help() const noexcept {
    return helpers < helpers_wanted && next.load(std::memory_order_relaxed) < tasks;
  }
};

// A job is in the list from before its caller starts on it until the caller finds no task left;
// after that no worker can join it, and the caller leaves when the last helper has.
class Pool {
 public:
  Pool() { workers_.reserve(kThreadsMax); }

  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void run(Job& job) {
    {
      const std::lock_guard lock(mutex_);
      grow_to(job.helpers_wanted);
      job.following = jobs_;
      jobs_ = &job;
    }
    for (unsigned i = 0; i < job.helpers_wanted; ++i) work_.notify_one();
    job.run();
    std::unique_lock lock(mutex_);
    unlink(job);
    left_.wait(lock, [&job] { return job.helpers == 0; });
  }

 private:
  // A thread that cannot be had is done without.
  void grow_to(unsigned workers) {
    try {
      while (workers_.size() < workers) workers_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {
    }
  }

  void unlink(const Job& job) noexcept {
    Job** link = &jobs_;
    while (*link != &job) link = &(*link)->following;
    *link = job.following;
  }

  Job* job_to_help() const noexcept {
    Job* job = jobs_;
    while (job != nullptr && !job->wants_help()) job = job->following;
    return job;
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      Job* job = nullptr;
      work_.wait(lock, [&] { return stopping_ || (job = job_to_help()) != nullptr; });
      if (job == nullptr) return;
      ++job->helpers;
      lock.unlock();
      job->run();
      lock.lock();
      if (--job->helpers == 0) left_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable left_;
  Job* jobs_ = nullptr;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace

void set_cpu_threads(unsigned threads) noexcept {
  thread_limit.store(threads);
}

void parallel_for(std::size_t tasks, std::size_t work, TaskFunction function, const void* context) {
  const std::size_t threads = std::min<std::size_t>(threads_allowed(), tasks);
  if (threads <= 1 || work < kWorkMin) {
    for (std::size_t task = 0; task < tasks; ++task) function(context, task);
    return;
  }
  static Pool pool;
  Job job{.function = function,
          .context = context,
          .tasks = tasks,
          .helpers_wanted = static_cast<unsigned>(threads - 1)};
  pool.run(job);
}

}  // namespace kvtier::kernels
