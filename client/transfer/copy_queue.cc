#include "client/transfer/copy_queue.h"

#include <chrono>
#include <vector>

#include "core/base/check.h"

namespace kvtier::transfer {
namespace {

// How long a stuck job waits for a wake() before it looks at its own clock again.
constexpr std::chrono::milliseconds kStuckPoll{5};

}  // namespace

CopyQueue::~CopyQueue() {
  KVTIER_CHECK(!thread_.joinable());
}

void CopyQueue::start() {
  thread_ = std::thread([this] { run(); });
}

void CopyQueue::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    work_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  std::vector<std::shared_ptr<CopyJob>> left;
  {
    const std::lock_guard lock(mutex_);
    for (Line& line : lines_) {
      left.insert(left.end(), line.jobs.begin(), line.jobs.end());
      line.ended = line.pushed;
      line.jobs.clear();
    }
    ended_.notify_all();
  }
  for (const auto& job : left) job->abandon();
}

bool CopyQueue::push(Priority priority, std::shared_ptr<CopyJob> job, std::size_t at_most) {
  const std::lock_guard lock(mutex_);
  Line& line = lines_[static_cast<std::size_t>(priority)];
  if (stopped_ || line.jobs.size() >= at_most) return false;
  line.jobs.push_back(std::move(job));
  ++line.pushed;
  ++wakes_;
  work_.notify_one();
  return true;
}

void CopyQueue::wake() {
  const std::lock_guard lock(mutex_);
  ++wakes_;
  work_.notify_one();
}

bool CopyQueue::drain(Priority priority, Deadline deadline) {
  std::unique_lock lock(mutex_);
  Line& line = lines_[static_cast<std::size_t>(priority)];
  const std::uint64_t until = line.pushed;
  return ended_.wait_until(lock, deadline, [&] { return line.ended >= until; });
}

void CopyQueue::run() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    const std::uint64_t wakes = wakes_;
    if (step_one(lock)) continue;
    bool stuck = false;
    for (const Line& line : lines_) stuck = stuck || !line.jobs.empty();
    const auto woken = [&] { return stopped_ || wakes_ != wakes; };
    if (stuck) {
      work_.wait_for(lock, kStuckPoll, woken);
    } else {
      work_.wait(lock, woken);
    }
  }
}

bool CopyQueue::step_one(std::unique_lock<std::mutex>& lock) {
  for (Line& line : lines_) {
    if (line.jobs.empty()) continue;
    // Stays in front while it is unlocked: only this thread pops.
    auto job = line.jobs.front();
    // So that nothing stands still between the end of one and the start of the other.
    const bool next_begins = line.jobs.size() > 1 && job->all_under_way();
    CopyJob* const next = next_begins ? line.jobs[1].get() : nullptr;
    lock.unlock();
    if (next != nullptr) next->begin();
    const CopyJob::Step step = job->step();
    lock.lock();
    if (step == CopyJob::Step::stuck) continue;
    if (step == CopyJob::Step::done) {
      line.jobs.pop_front();
      ++line.ended;
      ended_.notify_all();
      lock.unlock();
      job.reset();  // may release a lease
      lock.lock();
    }
    return true;
  }
  return false;
}

}  // namespace kvtier::transfer
