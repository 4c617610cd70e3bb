// What engine and copy threads leave for the session thread: tasks, and blocks to commit.
//
// Owned by the session. It holds:
// - Tasks are run in the order in which they came, and none that came after close() is taken in.
// - What was committed before a task was posted is taken no later than that task: a flush covers
//   the commits before it.
// Nobody waits here; whoever leaves something wakes the session thread by its eventfd.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "client/session/filled_block.h"
#include "core/base/fd.h"

namespace kvtier::session {

class Mailbox {
 public:
  struct Mail {
    std::vector<std::function<void()>> tasks;
    std::vector<FilledBlock> commits;
    bool closed = false;
  };

  explicit Mailbox(UniqueFd wake_fd) : wake_fd_(std::move(wake_fd)) {}

  // Any thread. False: it is closed, and the task will not run.
  bool post(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      if (mail_.closed) return false;
      mail_.tasks.push_back(std::move(task));
    }
    wake();
    return true;
  }
  // With one wake for all: to wake a thread costs more than to copy a small block.
  void commit(std::vector<FilledBlock> blocks) {
    if (blocks.empty()) return;
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      if (mail_.closed) return;
      first = mail_.commits.empty();
      std::ranges::move(blocks, std::back_inserter(mail_.commits));
    }
    if (first) wake();
  }
  void close() {
    {
      const std::lock_guard lock(mutex_);
      mail_.closed = true;
    }
    wake();
  }
  void wake() noexcept {
    const std::uint64_t one = 1;
    // A full counter wakes as well.
    [[maybe_unused]] const auto written = ::write(wake_fd_.get(), &one, sizeof one);
  }

  // Session thread. What has come since the last time, and whether it is closed.
  Mail take() {
    Mail taken;
    const std::lock_guard lock(mutex_);
    std::swap(taken.tasks, mail_.tasks);
    std::swap(taken.commits, mail_.commits);
    taken.closed = mail_.closed;
    return taken;
  }
  // To poll on, and to make quiet again before what is there is taken.
  int wake_fd() const noexcept { return wake_fd_.get(); }
  void quieten() noexcept {
    std::uint64_t ignored;
    [[maybe_unused]] const auto read = ::read(wake_fd_.get(), &ignored, sizeof ignored);
  }

 private:
  const UniqueFd wake_fd_;
  std::mutex mutex_;
  Mail mail_;
};

}  // namespace kvtier::session
