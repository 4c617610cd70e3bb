// The Redis store's thread: what is asked of it, deadlines, what answers mean, and poll().
//
// It owns everything on this thread. An operation that is late is answered by its timer, after its
// memory was taken back from the connection that it was on.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "storage/remote/redis/redis_context.h"
#include "storage/remote/redis/servers.h"

namespace kvtier::storage {

class RedisLoop final : OperationOwner {
 public:
  explicit RedisLoop(RedisContext context)
      : context_(std::move(context)), servers_(context_, *this) {}

  // Until close() has run.
  void run();

  // On the loop's thread, as tasks of its inbox.
  void find(RemoteBackend::Find&& find);
  void read(RemoteBackend::Read&& read);
  void write(RemoteBackend::Write&& write);
  void erase(RemoteBackend::Erase&& erase);
  void close();

 private:
  void answered(RedisNode& node, OperationPtr operation, Answer answer) override;
  void failed(OperationPtr operation, Error error) override;
  void slots_known(RedisNode& node, const Answer& answer) override;

  OperationPtr named(Operation::Kind kind, const Key& key) const;
  void start(OperationPtr operation, Deadline deadline);
  void refused(RedisNode& node, OperationPtr operation, const std::string& text);
  void try_elsewhere(RedisNode& node, OperationPtr operation, const ServerError& error);
  void landed(OperationPtr operation);
  void corrupt(const OperationPtr& operation, const std::string& why);
  // Answered once; whatever is left of it is only taken out of where it is.
  void finish(Operation& operation, Result<void> result);
  void known(const Operation& operation, bool there);
  void answer_find(FindState& find, Result<std::size_t> found);
  void late(const OperationPtr& operation);
  void tell(std::function<void()> task) { finished_.push_back(std::move(task)); }
  void report();
  void wait();

  RedisContext context_;
  Servers servers_;
  std::vector<std::function<void()>> finished_;  // for the control thread
  std::optional<Servers::Health> said_;
  bool closed_ = false;
};

}  // namespace kvtier::storage
