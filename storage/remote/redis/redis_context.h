// What all parts of the Redis store's thread work with. The loop owns it, and it outlives them.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/fd.h"
#include "storage/remote/redis/operation.h"
#include "storage/remote/redis/timers.h"
#include "storage/remote/redis/tls.h"
#include "storage/remote/remote_backend.h"
#include "storage/remote/remote_options.h"
#include "storage/remote/remote_url.h"

namespace kvtier::storage {

// Tasks on their way to the store's thread. Any thread sends; what is sent after stop() is dropped.
class LoopInbox {
 public:
  // Errors: io.
  static Result<std::shared_ptr<LoopInbox>> make();

  void send(std::function<void()> task);
  std::vector<std::function<void()>> take();
  void stop();
  int descriptor() const noexcept { return wake_.get(); }

 private:
  explicit LoopInbox(UniqueFd wake) : wake_(std::move(wake)) {}

  UniqueFd wake_;
  std::mutex mutex_;
  bool stopped_ = false;
  std::vector<std::function<void()>> tasks_;
};

struct RedisContext {
  RemoteOptions options;
  RemoteUrl url;
  ValueForm form;
  TlsContext tls;  // null: none
  std::shared_ptr<RemoteShared> shared;
  std::shared_ptr<LoopInbox> inbox;
  Timers timers;
  Clock::time_point now = Clock::now();  // as of this turn
  // Memory for values that are not received where they are wanted, used again.
  std::vector<std::vector<std::byte>> spare;
};

class RedisNode;

// Who gave a node an operation and hears what became of it.
class OperationOwner {
 public:
  // `answer` is lost where the connection was, or the server cannot be asked: its text says why.
  virtual void answered(RedisNode& node, OperationPtr operation, Answer answer) = 0;
  // It cannot be done, whatever the server is.
  virtual void failed(OperationPtr operation, Error error) = 0;
  // Its connection is up. It was asked for the slots of its cluster, and this is the answer.
  virtual void slots_known(RedisNode& node, const Answer& answer) = 0;

 protected:
  ~OperationOwner() = default;
};

}  // namespace kvtier::storage
