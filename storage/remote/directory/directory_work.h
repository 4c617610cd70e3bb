// What the threads of a directory store share: operations, who may touch their slots, and health.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kvtier/deadline.h"
#include "storage/remote/directory/directory_files.h"
#include "storage/remote/remote_backend.h"
#include "storage/remote/remote_value.h"

namespace kvtier::storage {

// One operation. Answered once, under the lock of DirectoryWork.
struct DirectoryTask {
  using Work = std::function<void(DirectoryTask&)>;

  Work work;                                        // on a worker
  std::function<void(Result<std::size_t>)> answer;  // on the control thread
  std::atomic<bool> answered = false;
  bool claimed = false;  // a worker touches its slot: it is not answered meanwhile
};

// How the directory is, as the threads found it.
struct DirectoryHealth {
  RemoteState state = RemoteState::offline;
  std::string why;
  friend bool operator==(const DirectoryHealth&, const DirectoryHealth&) = default;
};

class DirectoryWork {
 public:
  DirectoryWork(const DirectoryFiles& files, const ValueForm& form,
                std::shared_ptr<RemoteShared> shared, std::size_t workers);

  // Any thread.
  void add(std::shared_ptr<DirectoryTask> task, Deadline deadline, bool first);
  // No answer is posted once it has returned.
  void close();

  // The threads, each until close(); a worker has its number.
  void run_worker(std::size_t number);
  void run_prober();
  void run_keeper();

  // On workers. False: it was answered, and its slot is not to be touched. release() ends a claim.
  bool claim(DirectoryTask& task);
  void release(DirectoryTask& task);
  void answer(DirectoryTask& task, Result<std::size_t> result);
  void note_io_error();
  void note_write_error(const Error& error, std::uint64_t bytes);

  DirectoryFiles& files() noexcept { return files_; }
  const ValueForm& form() const noexcept { return form_; }
  RemoteShared& shared() noexcept { return *shared_; }

  // Waits, no longer than that, for the threads that hang in no call to end.
  void wait_for_threads(std::chrono::milliseconds at_most);

 private:
  using Lock = std::unique_lock<std::mutex>;

  void answer_locked(DirectoryTask& task, Result<std::size_t> result);
  void expire(Clock::time_point now);
  DirectoryHealth health(Clock::time_point now) const;
  void report(Clock::time_point now);
  void add_cleaning(Clock::time_point now);

  DirectoryFiles files_;
  const ValueForm form_;
  const std::shared_ptr<RemoteShared> shared_;

  std::mutex mutex_;
  std::condition_variable work_, keeper_, prober_, released_;
  bool closing_ = false;
  std::deque<std::shared_ptr<DirectoryTask>> first_, others_;
  std::multimap<Deadline, std::shared_ptr<DirectoryTask>> deadlines_;
  std::vector<std::optional<Clock::time_point>> busy_since_;  // of each worker
  std::optional<Clock::time_point> probing_since_;
  std::size_t threads_ = 0;  // that have begun and not ended
  bool probed_ = false, probe_now_ = false, was_good_ = false;
  std::string fails_, writes_fail_;
  std::uint64_t write_bytes_ = 0;  // that failed
  std::optional<DirectoryHealth> said_;
  Clock::time_point clean_at_{};
  bool cleaning_ = false;
};

}  // namespace kvtier::storage
