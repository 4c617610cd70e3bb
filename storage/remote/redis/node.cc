#include "storage/remote/redis/node.h"

#include <poll.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "storage/remote/remote_bounds.h"

namespace kvtier::storage {
namespace {

constexpr unsigned kTriesMax = 5;
// Where writes wait behind reads, they have one connection.
constexpr std::size_t kLanesOfWritesMin = 1;

Result<std::string> read_password(const std::string& file) {
  std::ifstream in(file);
  std::string password;
  std::getline(in, password);
  if (!in && !in.eof()) return make_error(Errc::io, "password_file " + file + " cannot be read");
  if (password.ends_with('\r')) password.pop_back();
  if (password.empty()) return make_error(Errc::io, "password_file " + file + " is empty");
  return password;
}

void lengthen(std::chrono::milliseconds& backoff) {
  backoff = std::clamp(backoff * 2, kRemoteProbeFirst, kRemoteProbeMax);
}

}  // namespace

RedisNode::RedisNode(RedisContext& context, OperationOwner& owner, RemoteAddress at)
    : context_(context),
      owner_(owner),
      at_(std::move(at)),
      lanes_(context.options.connections + 1) {
  for (Lane& lane : lanes_) {
    lane.connection.set_expiry(static_cast<std::uint64_t>(context.options.expiry.count()));
  }
}

std::string RedisNode::trouble() const {
  const std::string& why = !up_                   ? connect_fails_
                           : !reads_fail_.empty() ? reads_fail_
                           : !lanes_fail_.empty() ? lanes_fail_
                                                  : writes_fail_;
  return why.empty() ? why : at_.text() + " " + why;
}

void RedisNode::note_reads_fail(const std::string& why) {
  const bool known = !reads_fail_.empty();
  reads_fail_ = why;
  if (known) return;
  probe_backoff_ = {};
  lengthen(probe_backoff_);
  probe_at_ = context_.now + probe_backoff_;
}

void RedisNode::note_writes_fail(const std::string& why) {
  const bool known = !writes_fail_.empty();
  writes_fail_ = why;
  if (known) return;
  probe_backoff_ = {};
  lengthen(probe_backoff_);
  probe_at_ = context_.now + probe_backoff_;
}

void RedisNode::set_probe(std::optional<std::string> name) {
  if (probe_name_ == name) return;
  const bool first = !probe_name_;
  probe_name_ = std::move(name);
  if (first) probe_at_ = context_.now;
}

OperationPtr RedisNode::own(Operation::Kind kind) {
  auto operation = std::make_shared<Operation>();
  operation->kind = kind;
  return operation;
}

// Connecting.

void RedisNode::connect(Lane& lane) {
  if (addresses_.empty()) {
    if (finding_) return;
    finding_ = true;
    find_addresses(at_, [self = std::weak_ptr<RedisNode*>(self_),
                         inbox = context_.inbox](Result<std::vector<SocketAddress>> found) {
      inbox->send([self, found = std::move(found)] {
        const auto alive = self.lock();
        if (!alive) return;
        RedisNode& node = **alive;
        node.finding_ = false;
        if (found && !found->empty()) {
          node.addresses_ = *found;
          return;
        }
        for (Lane& waiting : node.lanes_) {
          if (!waiting.connection.is_open() && node.is_wanted(waiting))
            node.fail(waiting, found ? "has no address" : found.error().message);
        }
      });
    });
    return;
  }
  const SocketAddress& to = addresses_[next_address_ % addresses_.size()];
  lane.since = context_.now;
  lane.connected = lane.ready = false;
  if (auto open = lane.connection.open(to, context_.tls.get(), at_.host, context_.now); !open)
    return fail(lane, open.error().message);
  advance(lane);
}

void RedisNode::advance(Lane& lane) {
  const auto connected = lane.connection.advance();
  if (!connected) return fail(lane, connected.error().message);
  if (*connected) greet(lane);
}

void RedisNode::greet(Lane& lane) {
  lane.connected = true;
  if (!context_.options.password_file.empty()) {
    const auto password = read_password(context_.options.password_file);
    if (!password) return fail(lane, "cannot be asked: " + password.error().message);
    lane.connection.send_auth(own(Operation::Kind::auth), context_.url.user, *password,
                              context_.now);
  }
  lane.connection.send(own(Operation::Kind::ping), context_.now);
}

void RedisNode::note_ready(Lane& lane) {
  if (std::exchange(lane.ready, true)) return;
  if (&lane == &questions()) return be_up();
  lanes_fail_.clear();
}

void RedisNode::be_up() {
  up_ = true;
  probed_ = false;
  connect_fails_.clear();
  lanes_fail_.clear();
  reads_fail_.clear();
  writes_fail_.clear();
  probe_backoff_ = {};
  probe_at_ = context_.now;
  slots_wanted_ = true;
  for (Lane& lane : lanes_) {
    lane.backoff = {};
    if (!lane.connection.is_open()) lane.retry_at = context_.now;
  }
}

void RedisNode::fail(Lane& lane, const std::string& why) {
  if (lane.ready && &lane != &questions()) {
    // A server may close what lay idle.
    lane.backoff = {};
    lane.retry_at = context_.now;
    return close(lane, why);
  }
  lengthen(lane.backoff);
  lane.retry_at = context_.now + lane.backoff;
  ++next_address_;
  // The name may mean something else by the next time.
  if (addresses_.size() <= 1 || next_address_ % addresses_.size() == 0) addresses_.clear();
  if (&lane != &questions()) {
    close(lane, why);
    if (std::ranges::none_of(lanes_.begin() + 1, lanes_.end(), &Lane::ready)) {
      lanes_fail_ = why;
      lose_waiting(why);
    }
    return;
  }
  up_ = probed_ = false;
  failed_once_ = true;
  connect_fails_ = why;
  probes_under_way_ = 0;
  for (Lane& each : lanes_) close(each, why);
  lose_waiting(why);
}

void RedisNode::lose_waiting(const std::string& why) {
  for (auto* queue : {&questions_, &reads_, &writes_}) {
    for (const OperationPtr& operation : std::exchange(*queue, {})) lose(operation, why);
  }
}

void RedisNode::close(Lane& lane, const std::string& why) {
  lane.connected = lane.ready = false;
  ask_again(lane.connection.close(), why);
}

void RedisNode::lose(const OperationPtr& operation, const std::string& why) {
  if (operation->is_own() || operation->finished) return;
  owner_.answered(*this, operation, {.what = Answer::What::lost, .text = at_.text() + " " + why});
}

void RedisNode::ask_again(std::vector<OperationPtr> operations, const std::string& why) {
  for (auto at = operations.rbegin(); at != operations.rend(); ++at) {
    OperationPtr& operation = *at;
    if (!up_ || !operation->of_a_record() || ++operation->tries > kTriesMax) {
      lose(operation, why);
    } else if (!operation->finished) {
      auto& queue = operation->kind == Operation::Kind::get ? reads_ : writes_;
      queue.push_front(std::move(operation));
    }
  }
}

void RedisNode::give_up(const std::string& why) {
  fail(questions(), why);
}

// Operations.

void RedisNode::take(OperationPtr operation) {
  const bool reads = readable() || being_tried();
  // What a full server can still do is erase.
  const bool possible = reads && (operation->kind != Operation::Kind::set || writes_fail_.empty());
  if (!possible) {
    const std::string why = trouble();
    return owner_.answered(*this, std::move(operation), {.what = Answer::What::lost, .text = why});
  }
  auto& queue = operation->kind == Operation::Kind::get   ? reads_
                : operation->kind == Operation::Kind::set ? writes_
                                                          : questions_;
  if (operation->second_look) {
    queue.push_front(std::move(operation));
  } else {
    queue.push_back(std::move(operation));
  }
}

void RedisNode::take_back(const Operation& late) {
  for (std::size_t i = 1; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    if (!lane.connection.awaits(late)) continue;
    // One that answers nothing is not to be connected to for every operation that is late.
    if (!lane.connection.was_heard()) lengthen(lane.backoff);
    lane.retry_at = context_.now + lane.backoff;
    close(lane, "was late with another answer on the same connection");
  }
}

// What it takes to be sent. False: it was answered instead.
bool RedisNode::prepare(OperationPtr& operation) {
  if (operation->kind == Operation::Kind::get && operation->apart && operation->own.empty()) {
    if (!context_.spare.empty()) {
      operation->own = std::move(context_.spare.back());
      context_.spare.pop_back();
    }
    operation->own.resize(operation->value_bytes);
  }
  if (operation->kind != Operation::Kind::set || !operation->value.first.empty()) return true;
  auto value = context_.form.make(operation->record, operation->identity);
  if (!value) {
    owner_.failed(std::move(operation), value.error());
    return false;
  }
  operation->value = std::move(*value);
  return true;
}

// The next of a queue on the connection with the least to do. False: there is none, or no room.
bool RedisNode::start(std::deque<OperationPtr>& queue, std::size_t lanes) {
  while (!queue.empty() && queue.front()->finished) queue.pop_front();
  if (queue.empty()) return false;
  Lane* best = nullptr;
  for (std::size_t i = lanes_.size() - lanes; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    const Connection& connection = lane.connection;
    if (!lane.ready || !connection.has_room(queue.front()->value_bytes)) continue;
    if (best == nullptr || connection.bytes_awaited() < best->connection.bytes_awaited())
      best = &lane;
  }
  if (best == nullptr) return false;
  OperationPtr operation = std::move(queue.front());
  queue.pop_front();
  if (prepare(operation)) best->connection.send(std::move(operation), context_.now);
  return true;
}

void RedisNode::dispatch() {
  if (!readable()) return;
  if (questions().ready) {
    for (OperationPtr& operation : std::exchange(questions_, {})) {
      const bool unwanted = operation->finished || (operation->find && operation->find->answered);
      if (!unwanted) questions().connection.send(std::move(operation), context_.now);
    }
  }
  const std::size_t all = lanes_.size() - 1;
  while (start(reads_, all)) {
  }
  const bool reads_wait = std::ranges::any_of(
      reads_, [](const OperationPtr& operation) { return !operation->finished; });
  while (start(writes_, reads_wait ? kLanesOfWritesMin : all)) {
  }
}

// Health.

bool RedisNode::is_wanted(const Lane& lane) const noexcept {
  return &lane == &lanes_.front() || (up_ && probed_ && probe_name_);
}

void RedisNode::check_silence(Lane& lane) {
  if (!lane.connection.is_open()) return;
  if (!lane.ready) {
    if (context_.now - lane.since > kRemoteConnectTime)
      fail(lane, lane.connected ? "does not answer; look whether it hangs"
                 : lane.connection.is_shaking_hands()
                     ? "does not end the TLS handshake; look whether this port is its port for TLS"
                     : "does not take connections; look whether it is there");
    return;
  }
  const auto since = lane.connection.silent_since();
  if (since && context_.now - *since > kRemoteSilence)
    fail(lane, "does not answer; look whether it hangs");
}

void RedisNode::probe() {
  Connection& connection = questions().connection;
  probe_reads_.clear();
  probe_writes_.clear();
  for (const auto kind :
       {Operation::Kind::probe_get, Operation::Kind::probe_set, Operation::Kind::probe_del}) {
    auto operation = own(kind);
    operation->name = *probe_name_;
    connection.send(std::move(operation), context_.now);
    ++probes_under_way_;
  }
}

void RedisNode::look_after() {
  Lane& lane = questions();
  if (!lane.ready) return;
  if (ping_at_ <= context_.now) {
    lane.connection.send(own(Operation::Kind::ping), context_.now);
    ping_at_ = context_.now + kRemoteCheckInterval;
  }
  if (!up_) return;
  if (std::exchange(slots_wanted_, false))
    lane.connection.send(own(Operation::Kind::slots), context_.now);
  const bool wanted = !probed_ || !reads_fail_.empty() || !writes_fail_.empty();
  if (wanted && probe_name_ && probes_under_way_ == 0 && probe_at_ <= context_.now) probe();
}

void RedisNode::take_own(Lane& lane, const Operation& operation, Answer answer) {
  switch (operation.kind) {
    using enum Operation::Kind;
   case slots:
      return owner_.slots_known(*this, answer);
    case probe_get:
    case probe_set:
    case probe_del:
      return take_probe(operation, answer);
    default:
      break;
  }
  if (answer.what == Answer::What::error) {
    const ServerError failed = classify_error(answer.text);
    // Who may not ping may yet do what is needed.
    if (operation.kind == Operation::Kind::auth || failed.kind != ServerError::Kind::denied)
      return fail(lane, failed.why);
  }
  if (operation.kind == Operation::Kind::ping) note_ready(lane);
}

void RedisNode::take_probe(const Operation& operation, const Answer& answer) {
  if (probes_under_way_ > 0) --probes_under_way_;
  if (answer.what == Answer::What::error) {
    const ServerError failed = classify_error(answer.text);
    const bool moved = failed.kind == ServerError::Kind::moved ||
                       failed.kind == ServerError::Kind::ask ||
                       failed.kind == ServerError::Kind::try_again;
    if (moved || failed.map_stale) slots_wanted_ = true;
    const bool whole =
        operation.kind == Operation::Kind::probe_get || failed.kind == ServerError::Kind::unusable;
    std::string& finding = whole ? probe_reads_ : probe_writes_;
    if (!moved && failed.kind != ServerError::Kind::not_a_value && finding.empty())
      finding = failed.why;
  }
  if (probes_under_way_ > 0) return;
  const bool first = !std::exchange(probed_, true);
  reads_fail_ = probe_reads_;
  writes_fail_ = probe_writes_;
  if (reads_fail_.empty() && writes_fail_.empty()) {
    probe_backoff_ = {};
  } else {
    if (first) failed_once_ = true;
    lengthen(probe_backoff_);
    probe_at_ = context_.now + probe_backoff_;
  }
  if (!reads_fail_.empty()) lose_waiting(reads_fail_);
}

// A turn.

void RedisNode::turn() {
  for (Lane& lane : lanes_) {
    check_silence(lane);
    if (!lane.connection.is_open() && is_wanted(lane) && lane.retry_at <= context_.now)
      connect(lane);
  }
  look_after();
  dispatch();
  for (Lane& lane : lanes_) {
    if (!lane.connected) continue;
    if (const auto sent = lane.connection.transmit(context_.now); !sent)
      fail(lane, sent.error().message);
  }
  set_next_turn();
}

void RedisNode::set_next_turn() {
  next_turn_ = std::max(context_.now, ping_at_);
  if (!up_) next_turn_ = context_.now + kRemoteCheckInterval;
  for (const Lane& lane : lanes_) {
    if (lane.connection.is_open()) {
      const auto silent = lane.connection.silent_since();
      if (!lane.ready) next_turn_ = std::min(next_turn_, lane.since + kRemoteConnectTime);
      if (lane.ready && silent) next_turn_ = std::min(next_turn_, *silent + kRemoteSilence);
    } else if (is_wanted(lane) && !finding_) {
      next_turn_ = std::min(next_turn_, lane.retry_at);
    }
  }
  const bool troubled = !probed_ || !reads_fail_.empty() || !writes_fail_.empty();
  if (up_ && troubled && probe_name_ && probes_under_way_ == 0)
    next_turn_ = std::min(next_turn_, probe_at_);
}

void RedisNode::add_polls(std::vector<pollfd>& polls) const {
  for (const Lane& lane : lanes_) {
    if (lane.connection.is_open())
      polls.push_back({lane.connection.descriptor(), lane.connection.wanted(), 0});
  }
}

std::size_t RedisNode::polled(const pollfd* found) {
  // An earlier one's failure may close a later one.
  std::vector<std::pair<std::size_t, short>> events;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i].connection.is_open()) events.emplace_back(i, found[events.size()].revents);
  }
  for (const auto& [number, revents] : events) {
    Lane& lane = lanes_[number];
    if (!lane.connection.is_open()) continue;
    if (!lane.connected) {
      if (revents != 0) advance(lane);
      continue;
    }
    if ((revents & ~POLLOUT) == 0 && !lane.connection.has_more()) continue;
    std::vector<Connection::Answered> answered;
    const auto received = lane.connection.receive(answered, context_.now);
    for (auto& [operation, answer] : answered) {
      if (operation->is_own()) {
        // What follows a greeting that failed says less than it.
        if (lane.connection.is_open()) take_own(lane, *operation, std::move(answer));
      } else if (!operation->finished) {
        owner_.answered(*this, std::move(operation), std::move(answer));
      }
    }
    if (!received && lane.connection.is_open()) fail(lane, received.error().message);
  }
  return events.size();
}

bool RedisNode::has_more() const noexcept {
  return std::ranges::any_of(lanes_, [](const Lane& lane) { return lane.connection.has_more(); });
}

std::uint32_t RedisNode::connections() const noexcept {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(lanes_, [](const Lane& lane) { return lane.ready; }));
}

}  // namespace kvtier::storage
