// The current connection's directory for engine threads: reading it takes two atomic additions and
// never waits, not even while the session thread replaces it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/session/connection.h"

namespace kvtier::session {

class DirectorySnapshot {
 public:
  // Calls `use(const DirectoryView*)`, null without a daemon; the view lives as long as the call.
  template <class Use>
  auto read(Use&& use) const noexcept {
    readers_.fetch_add(1);
    const auto result = use(current_.load());
    readers_.fetch_sub(1);
    return result;
  }

  // Session thread only. Null: no directory.
  void publish(std::shared_ptr<const Connection> connection) {
    if (published_) retired_.push_back(std::move(published_));
    published_ = std::move(connection);
    current_.store(published_ ? &published_->directory() : nullptr);
    collect();
  }
  // Session thread only. Frees what no reader can see any more: a reader that is not counted now
  // takes its pointer after the store above.
  void collect() {
    if (!retired_.empty() && readers_.load() == 0) retired_.clear();
  }

 private:
  std::atomic<const DirectoryView*> current_{nullptr};
  mutable std::atomic<std::uint32_t> readers_{0};
  std::shared_ptr<const Connection> published_;
  std::vector<std::shared_ptr<const Connection>> retired_;
};

}  // namespace kvtier::session
