#include "storage/remote/redis/redis_loop.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "storage/index/record_checks.h"
#include "storage/remote/remote_bounds.h"

namespace kvtier::storage {
namespace {

// Redirects, and answers that say to try again.
constexpr unsigned kRedirectsMax = 8;
constexpr std::chrono::milliseconds kTryAgainAfter{10};
constexpr std::size_t kSpareMax = 16;

Error unavailable(const std::string& why) {
  return make_error(Errc::unavailable, "the remote store: " + why);
}

}  // namespace

Result<std::shared_ptr<LoopInbox>> LoopInbox::make() {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return errno_error(Errc::io, "remote store: no eventfd");
  return std::shared_ptr<LoopInbox>(new LoopInbox(std::move(wake)));
}

void LoopInbox::send(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    tasks_.push_back(std::move(task));
    if (tasks_.size() > 1) return;
  }
  const std::uint64_t one = 1;
  const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  KVTIER_CHECK(written == sizeof one || errno == EAGAIN);
}

std::vector<std::function<void()>> LoopInbox::take() {
  std::uint64_t count = 0;
  const ssize_t ignored = ::read(wake_.get(), &count, sizeof count);
  static_cast<void>(ignored);
  const std::lock_guard lock(mutex_);
  return std::exchange(tasks_, {});
}

void LoopInbox::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  tasks_.clear();
}

// What is asked.

OperationPtr RedisLoop::named(Operation::Kind kind, const Key& key) const {
  auto operation = std::make_shared<Operation>();
  operation->kind = kind;
  operation->key = key;
  operation->name = value_name(key);
  operation->slot = key_slot(operation->name);
  return operation;
}

void RedisLoop::start(OperationPtr operation, Deadline deadline) {
  operation->timer = context_.timers.add(deadline, [this, operation] { late(operation); });
  servers_.take(std::move(operation));
}

void RedisLoop::find(RemoteBackend::Find&& find) {
  auto state = std::make_shared<FindState>();
  state->keys.resize(find.keys.size(), FindState::Known::no_answer);
  state->done = std::move(find.done);
  state->timer = context_.timers.add(find.deadline, [this, state] {
    state->timer.reset();
    ++context_.shared->counters.late;
    answer_find(*state, remote_late());
  });
  for (std::size_t i = 0; i < find.keys.size() && !state->answered; ++i) {
    auto operation = named(Operation::Kind::exists, find.keys[i]);
    operation->find = state;
    operation->find_index = i;
    servers_.take(std::move(operation));
  }
}

void RedisLoop::read(RemoteBackend::Read&& read) {
  auto operation = named(Operation::Kind::get, read.key);
  operation->ns = read.ns;
  operation->memory = read.memory;
  operation->apart = context_.form.sealed();
  operation->value_bytes = context_.form.value_bytes(read.memory.size());
  operation->done = std::move(read.done);
  start(std::move(operation), read.deadline);
}

void RedisLoop::write(RemoteBackend::Write&& write) {
  auto operation = named(Operation::Kind::set, write.identity.key);
  operation->identity = write.identity;
  operation->record = write.memory;
  operation->value_bytes = context_.form.value_bytes(write.memory.size());
  operation->done = std::move(write.done);
  start(std::move(operation), context_.now + kRemoteWriteTime);
}

void RedisLoop::erase(RemoteBackend::Erase&& erase) {
  auto state = std::make_shared<EraseState>();
  state->left = erase.keys.size();
  state->done = std::move(erase.done);
  for (const Key& key : erase.keys) {
    auto operation = named(Operation::Kind::del, key);
    operation->erase = state;
    start(std::move(operation), context_.now + kRemoteOwnTime);
  }
}

// What came of it.

void RedisLoop::slots_known(RedisNode& node, const Answer& answer) {
  servers_.slots_known(node, answer);
}

void RedisLoop::failed(OperationPtr operation, Error error) {
  finish(*operation, std::move(error));
}

void RedisLoop::answered(RedisNode& node, OperationPtr operation, Answer answer) {
  using What = Answer::What;
  operation->asking = false;
  if (answer.what == What::error) return refused(node, std::move(operation), answer.text);
  if (answer.what == What::lost) {
    return finish(*operation, unavailable(answer.text));
  }
  switch (operation->kind) {
    case Operation::Kind::exists:
      return known(*operation, answer.what == What::integer && answer.integer > 0);
    case Operation::Kind::get:
      if (answer.what == What::value) return landed(std::move(operation));
      if (answer.what == What::wrong_length)
        return corrupt(operation, "value: it has not the record's length");
      return finish(*operation, make_error(Errc::not_found, "the remote store has no such record"));
    default:
      return finish(*operation, {});
  }
}

void RedisLoop::refused(RedisNode& node, OperationPtr operation, const std::string& text) {
  using Kind = ServerError::Kind;
  const ServerError error = classify_error(text);
  const std::string why = node.address().text() + " " + error.why;
  if (error.map_stale && servers_.is_cluster()) servers_.note_map_stale();
  switch (error.kind) {
    case Kind::moved:
    case Kind::ask:
    case Kind::try_again:
      return try_elsewhere(node, std::move(operation), error);
    case Kind::not_master:
      if (servers_.is_cluster()) return try_elsewhere(node, std::move(operation), error);
      node.note_writes_fail(error.why);
      return finish(*operation, unavailable(why));
    case Kind::not_a_value:
      if (operation->kind == Operation::Kind::get)
        return corrupt(operation, "value: what lies there is none");
      return finish(*operation, unavailable(why));
    case Kind::no_writes:
      node.note_writes_fail(error.why);
      return finish(*operation, error.full ? make_error(Errc::no_space, "the remote store: " + why)
                                           : unavailable(why));
    case Kind::denied:
      if (operation->writes()) {
        node.note_writes_fail(error.why);
      } else {
        node.note_reads_fail(error.why);
      }
      return finish(*operation, unavailable(why));
    case Kind::unusable:
      node.note_reads_fail(error.why);
      return finish(*operation, unavailable(why));
    default:
      return finish(*operation, make_error(Errc::io, "the remote store: " + why));
  }
}

void RedisLoop::try_elsewhere(RedisNode& node, OperationPtr operation, const ServerError& error) {
  using Kind = ServerError::Kind;
  if (++operation->tries > kRedirectsMax) {
    return finish(*operation,
                  unavailable(node.address().text() + " and others send a key to one another; its "
                                                      "cluster is being changed"));
  }
  if (error.kind == Kind::ask) {
    operation->asking = true;
    return servers_.take_at(node, error.to, std::move(operation));
  }
  if (error.kind == Kind::moved) {
    servers_.note_moved(node, error.slot, error.to);
    return servers_.take(std::move(operation));
  }
  context_.timers.add(context_.now + kTryAgainAfter, [this, operation] {
    if (!operation->finished && !closed_) servers_.take(operation);
  });
}

// Where clients can write, what does not hold need not be the store's fault: that is for a second
// look to say, into memory that they cannot reach.
void RedisLoop::landed(OperationPtr operation) {
  if (!operation->apart) {
    const auto good = verify_record(operation->memory, operation->ns, operation->key);
    if (good) return finish(*operation, {});
    operation->apart = operation->second_look = true;
    return servers_.take(std::move(operation));
  }
  const auto record = context_.form.open(operation->own, operation->ns, operation->key);
  if (!record && record.error().code == Errc::corrupt)
    return corrupt(operation, record.error().message);
  if (!record) return finish(*operation, record.error());
  std::memcpy(operation->memory.data(), record->data(), record->size());
  if (operation->second_look) ++context_.shared->counters.memory_faults;
  finish(*operation, {});
}

void RedisLoop::corrupt(const OperationPtr& operation, const std::string& why) {
  ++context_.shared->counters.corrupt;
  start(named(Operation::Kind::del, operation->key), context_.now + kRemoteOwnTime);
  finish(*operation, make_error(Errc::corrupt, why));
}

void RedisLoop::late(const OperationPtr& operation) {
  operation->timer.reset();
  if (operation->finished) return;
  operation->finished = true;
  if (operation->of_a_record()) {
    servers_.take_back(*operation);
    ++context_.shared->counters.late;
  }
  operation->finished = false;
  finish(*operation, remote_late());
}

void RedisLoop::finish(Operation& operation, Result<void> result) {
  if (operation.finished) return;
  if (operation.kind == Operation::Kind::exists) return known(operation, false);
  operation.finished = true;
  context_.timers.cancel(operation.timer);
  if (!operation.own.empty() && context_.spare.size() < kSpareMax)
    context_.spare.push_back(std::move(operation.own));
  operation.value = {};
  if (operation.erase) {
    EraseState& erase = *operation.erase;
    if (!result) erase.failed.push_back(operation.key);
    if (--erase.left == 0)
      tell([done = std::move(erase.done), failed = std::move(erase.failed)] { done(failed); });
  }
  if (operation.done) {
    tell([done = std::move(operation.done), result = std::move(result)] { done(result); });
  }
}

void RedisLoop::known(const Operation& operation, bool there) {
  FindState& find = *operation.find;
  if (find.answered) return;
  find.keys[operation.find_index] = there ? FindState::Known::there : FindState::Known::missing;
  while (find.leading < find.keys.size() && find.keys[find.leading] == FindState::Known::there) {
    ++find.leading;
  }
  const bool decided =
      find.leading == find.keys.size() || find.keys[find.leading] == FindState::Known::missing;
  if (decided) answer_find(find, find.leading);
}

void RedisLoop::answer_find(FindState& find, Result<std::size_t> found) {
  find.answered = true;
  context_.timers.cancel(find.timer);
  tell([done = std::move(find.done), found = std::move(found)] { done(found); });
}

// The thread.

void RedisLoop::close() {
  closed_ = true;
  context_.inbox->stop();
  // Every connection is closed first: nothing is touched when its owner hears of it.
  for (const auto& node : servers_.nodes()) node->give_up("the remote store is closed");
  // What waits for a moment to be tried again, and what is left of finds.
  context_.now += std::chrono::hours(24 * 366);
  while (auto late_one = context_.timers.take_due(context_.now)) late_one();
}

void RedisLoop::report() {
  if (!finished_.empty()) {
    context_.shared->post([tasks = std::exchange(finished_, {})] {
      for (const auto& run : tasks) run();
    });
  }
  std::uint32_t connections = 0;
  for (const auto& node : servers_.nodes()) connections += node->connections();
  context_.shared->counters.connections = connections;
  if (closed_) return;
  auto health = servers_.health();
  if (!health || health == said_) return;
  said_ = health;
  context_.shared->post(
      [shared = context_.shared, health = *health] { shared->changed(health.state, health.why); });
}

void RedisLoop::wait() {
  std::vector<pollfd> polls{{context_.inbox->descriptor(), POLLIN, 0}};
  bool more = false;
  for (const auto& node : servers_.nodes()) {
    node->add_polls(polls);
    more = more || node->has_more();
  }
  Deadline until = servers_.next_turn();
  if (const auto timer = context_.timers.next()) until = std::min(until, *timer);
  const auto left = std::max(Clock::duration::zero(), until - Clock::now());
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  timespec timeout{};
  if (!more) {
    timeout.tv_sec = seconds.count();
    timeout.tv_nsec = std::chrono::nanoseconds(left - seconds).count();
  }
  const int found = ::ppoll(polls.data(), polls.size(), &timeout, nullptr);
  KVTIER_CHECK(found >= 0 || errno == EINTR);
  context_.now = Clock::now();
  if (found <= 0 && !more) return;
  std::size_t at = 1;
  // Answers may bring servers that have not been polled.
  const std::size_t polled = servers_.nodes().size();
  for (std::size_t i = 0; i < polled && at < polls.size(); ++i)
    at += servers_.nodes()[i]->polled(&polls[at]);
}

void RedisLoop::run() {
  while (!closed_) {
    context_.now = Clock::now();
    for (const auto& task : context_.inbox->take()) {
      if (!closed_) task();
    }
    if (closed_) break;
    while (auto due = context_.timers.take_due(context_.now)) due();
    servers_.turn();
    report();
    wait();
  }
  report();
}

}  // namespace kvtier::storage
