// What all parts of the store's thread work with: the device, the way in, the way out, the numbers
// of transfers. The loop owns it, and it outlives every part.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "storage/device/block_device.h"
#include "storage/index/store_options.h"
#include "storage/store/thread/commands.h"

namespace kvtier::storage {

// Commands on their way to the store's thread. Any thread sends, which ends the device's wait; the
// store's thread takes all there are, in the order in which they were sent.
class Inbox {
 public:
  explicit Inbox(BlockDevice& device) : device_(device) {}

  void send(StoreCommand command) {
    {
      const std::lock_guard lock(mutex_);
      commands_.push_back(std::move(command));
    }
    device_.wake();
  }
  std::deque<StoreCommand> take() {
    std::deque<StoreCommand> taken;
    const std::lock_guard lock(mutex_);
    taken.swap(commands_);
    return taken;
  }

 private:
  BlockDevice& device_;
  std::mutex mutex_;
  std::deque<StoreCommand> commands_;
};

// What the control thread is to hear of, in order, one post for all that a turn has ended.
class Finished {
 public:
  explicit Finished(RecordStore::Post post) : post_(std::move(post)) {}

  void add(RecordStore::Done<void>& done, Result<void> result) {
    tasks_.push_back([done = std::move(done), result = std::move(result)] { done(result); });
  }
  void add(std::function<void()> task) { tasks_.push_back(std::move(task)); }
  void post() {
    if (tasks_.empty()) return;
    post_([tasks = std::exchange(tasks_, {})] {
      for (const auto& run : tasks) run();
    });
  }

 private:
  RecordStore::Post post_;
  std::vector<std::function<void()>> tasks_;
};

struct StoreShared {
  StoreShared(const RecordStoreOptions& all, BlockDevice& on, StoreCounters& counted,
              RecordStore::Post post)
      : options(all), device(on), counters(counted), inbox(on), finished(std::move(post)) {}

  const RecordStoreOptions options;
  BlockDevice& device;
  StoreCounters& counters;
  Inbox inbox;
  Finished finished;
  bool closing = false;  // what is not under way any more is not begun

  // Of a transfer or of what a worker computes; never kSyncTag.
  std::uint64_t new_tag() noexcept { return next_tag_++; }

 private:
  std::uint64_t next_tag_ = 1;
};

inline Error closing_error() {
  return make_error(Errc::unavailable, "the record store is closing");
}

}  // namespace kvtier::storage
