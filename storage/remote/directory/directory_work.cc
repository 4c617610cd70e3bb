#include "storage/remote/directory/directory_work.h"

#include <algorithm>
#include <utility>

#include "storage/remote/remote_bounds.h"

namespace kvtier::storage {
namespace {

constexpr std::chrono::minutes kCleanInterval{1};

}  // namespace

DirectoryWork::DirectoryWork(const DirectoryFiles& files, const ValueForm& form,
                             std::shared_ptr<RemoteShared> shared, std::size_t workers)
    : files_(files), form_(form), shared_(std::move(shared)), busy_since_(workers) {}

void DirectoryWork::add(std::shared_ptr<DirectoryTask> task, Deadline deadline, bool first) {
  const std::lock_guard lock(mutex_);
  deadlines_.emplace(deadline, task);
  (first ? first_ : others_).push_back(std::move(task));
  work_.notify_one();
  keeper_.notify_one();
}

void DirectoryWork::answer_locked(DirectoryTask& task, Result<std::size_t> result) {
  if (task.answered.exchange(true) || !task.answer) return;
  shared_->post([answer = std::move(task.answer), result = std::move(result)] { answer(result); });
}

void DirectoryWork::answer(DirectoryTask& task, Result<std::size_t> result) {
  const std::lock_guard lock(mutex_);
  answer_locked(task, std::move(result));
}

bool DirectoryWork::claim(DirectoryTask& task) {
  const std::lock_guard lock(mutex_);
  task.claimed = !task.answered;
  return task.claimed;
}

void DirectoryWork::release(DirectoryTask& task) {
  const std::lock_guard lock(mutex_);
  task.claimed = false;
  released_.notify_all();
  keeper_.notify_one();
}

void DirectoryWork::note_io_error() {
  const std::lock_guard lock(mutex_);
  probe_now_ = true;
  prober_.notify_one();
}

void DirectoryWork::note_write_error(const Error& error, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  writes_fail_ = error.message;
  write_bytes_ = std::max(write_bytes_, bytes);
  probe_now_ = true;
  prober_.notify_one();
  keeper_.notify_one();
}

void DirectoryWork::run_worker(std::size_t number) {
  Lock lock(mutex_);
  ++threads_;
  for (;;) {
    work_.wait(lock, [this] { return closing_ || !first_.empty() || !others_.empty(); });
    if (closing_) break;
    auto& queue = first_.empty() ? others_ : first_;
    const auto task = std::move(queue.front());
    queue.pop_front();
    if (task->answered) continue;
    busy_since_[number] = Clock::now();
    lock.unlock();
    task->work(*task);
    lock.lock();
    busy_since_[number].reset();
    keeper_.notify_one();
  }
  --threads_;
  released_.notify_all();
}

void DirectoryWork::run_prober() {
  Lock lock(mutex_);
  ++threads_;
  std::chrono::milliseconds backoff{0};
  while (!closing_) {
    const bool may_make = !was_good_;
    const bool writes = !writes_fail_.empty();
    const std::uint64_t bytes = write_bytes_;
    probe_now_ = false;
    probing_since_ = Clock::now();
    lock.unlock();
    auto good = files_.check(may_make);
    auto written = writes && good ? files_.try_write(bytes) : Result<void>();
    lock.lock();
    probing_since_.reset();
    probed_ = true;
    // A directory in which nothing can be made may yet hold what can be read, but has no FORMAT.
    fails_ = good ? "" : good.error().message;
    was_good_ = was_good_ || good;
    if (writes && good) {
      writes_fail_ = written ? "" : written.error().message;
      if (written) write_bytes_ = 0;
    }
    const bool well = fails_.empty() && writes_fail_.empty();
    backoff = well ? std::chrono::milliseconds{0}
                   : std::clamp(backoff * 2, kRemoteProbeFirst, kRemoteProbeMax);
    keeper_.notify_one();
    prober_.wait_for(lock, well ? kRemoteCheckInterval : backoff,
                     [this] { return closing_ || probe_now_; });
  }
  --threads_;
  released_.notify_all();
}

void DirectoryWork::expire(Clock::time_point now) {
  for (auto at = deadlines_.begin(); at != deadlines_.end();) {
    DirectoryTask& task = *at->second;
    if (task.answered) {
      at = deadlines_.erase(at);
      continue;
    }
    if (at->first > now) break;
    // What is claimed is answered by its worker in a moment.
    if (task.claimed) {
      ++at;
      continue;
    }
    ++shared_->counters.late;
    answer_locked(task, remote_late());
    at = deadlines_.erase(at);
  }
}

DirectoryHealth DirectoryWork::health(Clock::time_point now) const {
  const auto hangs = [now](const std::optional<Clock::time_point>& since) {
    return since && now - *since > kRemoteSilence;
  };
  if (hangs(probing_since_) || std::ranges::all_of(busy_since_, hangs)) {
    return {RemoteState::offline,
            "the shared directory does not answer; look at its file server and at dmesg"};
  }
  if (!fails_.empty()) return {RemoteState::offline, fails_};
  if (!writes_fail_.empty()) return {RemoteState::read_only, writes_fail_};
  return {RemoteState::online, ""};
}

void DirectoryWork::report(Clock::time_point now) {
  const bool hangs = probing_since_ && now - *probing_since_ > kRemoteSilence;
  if (!probed_ && !hangs) return;
  const DirectoryHealth found = health(now);
  if (found == said_) return;
  said_ = found;
  shared_->counters.connections =
      found.state == RemoteState::offline ? 0 : static_cast<std::uint32_t>(busy_since_.size());
  shared_->post([shared = shared_, found] { shared->changed(found.state, found.why); });
  if (found.state != RemoteState::offline) return;
  const Error offline = make_error(Errc::unavailable, "the remote store: " + found.why);
  for (auto* queue : {&first_, &others_}) {
    for (const auto& task : std::exchange(*queue, {})) {
      if (!task->answer && !task->answered) cleaning_ = false;  // nobody waits for that one
      answer_locked(*task, offline);
    }
  }
}

void DirectoryWork::add_cleaning(Clock::time_point now) {
  const bool due = said_ && said_->state == RemoteState::online && now >= clean_at_ && !cleaning_;
  if (!due) return;
  cleaning_ = true;
  clean_at_ = now + kCleanInterval;
  auto task = std::make_shared<DirectoryTask>();
  task->work = [this](DirectoryTask&) {
    files_.clean_up();
    const std::lock_guard lock(mutex_);
    cleaning_ = false;
  };
  others_.push_back(std::move(task));
  work_.notify_one();
}

void DirectoryWork::run_keeper() {
  Lock lock(mutex_);
  while (!closing_) {
    const auto now = Clock::now();
    expire(now);
    report(now);
    add_cleaning(now);
    auto until = now + kRemoteProbeFirst;
    if (!deadlines_.empty()) until = std::min(until, deadlines_.begin()->first);
    // One that is claimed and late is told by its release.
    if (until <= now) until = now + std::chrono::milliseconds(1);
    keeper_.wait_until(lock, until);
  }
}

void DirectoryWork::close() {
  Lock lock(mutex_);
  closing_ = true;
  for (auto* each : {&work_, &keeper_, &prober_}) each->notify_all();
  for (const auto& [deadline, task] : deadlines_) {
    released_.wait(lock, [&task = task] { return !task->claimed; });
    answer_locked(*task, remote_closing());
  }
  deadlines_.clear();
  first_.clear();
  others_.clear();
}

void DirectoryWork::wait_for_threads(std::chrono::milliseconds at_most) {
  Lock lock(mutex_);
  released_.wait_for(lock, at_most, [this] { return threads_ == 0; });
}

}  // namespace kvtier::storage
