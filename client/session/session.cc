// The session's thread: its mailbox, its loop, and connecting. What is said is in session_frames.cc
// and session_blocks.cc.
#include "client/session/session.h"

#include <poll.h>

#include <algorithm>

#include "client/session/limits.h"
#include "core/base/check.h"
#include "core/base/points.h"
#include "core/base/thread_priority.h"

namespace kvtier::session {
namespace {

Error closed() {
  return make_error(Errc::unavailable, "the client is closed");
}

// The daemon has more reasons than an engine is told apart.
Result<void> narrowed(const Result<void>& result, Errc other) {
  if (result || result.error().code == Errc::unavailable) return result;
  return make_error(other, result.error().message);
}

std::uint64_t random_number() {
  std::random_device random;
  const std::uint64_t high = random();
  return (high << 32 | random()) | 1;  // never 0
}

void give_up(NamespaceEntry& ns) {
  for (SlotPool& pool : ns.pools) pool.give_up();
}

}  // namespace

Session::Session(ClientOptions options, UniqueFd wake_fd, std::function<void()> slots_changed,
                 std::shared_ptr<GpuMemory> gpu, milliseconds answer_max)
    : options_(std::move(options)),
      slots_changed_(std::move(slots_changed)),
      gpu_(std::move(gpu)),
      answer_max_(answer_max),
      wake_fd_(std::move(wake_fd)),
      read_only_(options_.read_only),
      client_id_(random_number()),
      delay_(kReconnectDelayMin) {}

Session::~Session() {
  KVTIER_CHECK(!thread_.joinable());
}

void Session::start() {
  thread_ = std::thread([this] { run(); });
}

void Session::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    state_changed_.notify_all();
  }
  wake();
  if (thread_.joinable()) thread_.join();
}

void Session::wake() noexcept {
  const std::uint64_t one = 1;
  // A full counter wakes as well.
  [[maybe_unused]] const auto written = ::write(wake_fd_.get(), &one, sizeof one);
}

bool Session::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return false;
    tasks_.push_back(std::move(task));
  }
  wake();
  return true;
}

Result<void> Session::wait_connected(Deadline deadline) {
  std::unique_lock lock(mutex_);
  state_changed_.wait_until(lock, deadline, [&] { return connected() || closing_; });
  if (closing_) return closed();
  if (connected()) return {};
  Counters::add(counters_.deadlines_missed);
  return make_error(Errc::deadline, "not connected to kvtierd: " + last_failure_);
}

std::shared_ptr<NamespaceEntry> Session::open(const Namespace& ns) {
  std::shared_ptr<NamespaceEntry> entry;
  {
    const std::lock_guard lock(mutex_);
    const auto known =
        std::ranges::find_if(namespaces_, [&](const auto& e) { return e->ns == ns; });
    if (known != namespaces_.end()) return *known;
    entry = std::make_shared<NamespaceEntry>(ns, options_.slots_ahead);
    namespaces_.push_back(entry);
  }
  for (SlotPool& pool : entry->pools) pool.expect();
  const bool posted = post([this, entry] {
    if (!connection_) return give_up(*entry);
    // A welcome may have opened it already.
    if (entry->state == NamespaceEntry::State::closed) open_on_daemon(entry);
  });
  if (!posted) give_up(*entry);
  return entry;
}

void Session::give_back_if_unused(const std::shared_ptr<NamespaceEntry>& ns) {
  if (ns->users != 0) return;
  post([this, ns] {
    if (ns->users != 0) return;
    for (SlotPool& pool : ns->pools) abandon(pool.shed(0));
  });
}

void Session::put_back(const std::shared_ptr<NamespaceEntry>& ns, Tier tier, ReservedSlot slot) {
  ns->pool(tier).put_back(std::move(slot));
  give_back_if_unused(ns);
}

std::vector<std::shared_ptr<NamespaceEntry>> Session::all_namespaces() const {
  const std::lock_guard lock(mutex_);
  return namespaces_;
}

// A lookup is counted by whoever hears of it: the daemon, once the request is sent; we, in the next
// report, where it is not.
Result<void> Session::lease(const std::shared_ptr<HeldBlocks>& hold, Deadline deadline) {
  const auto outcome = std::make_shared<Outcome>();
  const bool posted = post([this, hold, outcome] {
    with_handle(hold->ns(), [this, hold, outcome](Result<std::uint32_t> handle) {
      if (handle) return ask_lease(*handle, hold, outcome);
      hold->ns().missed += hold->looked_up();
      outcome->set(handle.error());
    });
  });
  if (!posted) return closed();
  if (auto result = outcome->wait(deadline)) return narrowed(*result, Errc::refused);
  Counters::add(counters_.deadlines_missed);
  return make_error(Errc::deadline, "kvtierd did not answer a lease request in time");
}

void Session::release(const std::shared_ptr<const Connection>& connection, std::uint64_t lease,
                      std::optional<std::uint32_t> usable) {
  post([this, connection, lease, usable] {
    if (connection_ != connection) return;
    leases_.erase(lease);
    // Believed only while the blocks are held.
    if (report_soon_) send_report(Clock::now());
    tell([&](wire::Message::Builder m) {
      if (!usable) return m.initRelease(1).set(0, lease);
      auto partly = m.initReleasePartly(1)[0];
      partly.setLease(lease);
      partly.setUsable(*usable);
    });
  });
}

void Session::commit(FilledBlock block) {
  for (const ReservedSlot& slot : block.slots)
    block.ns->pool(slot.ref.extent->tier).filled(Clock::now());
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    first = commits_.empty();
    commits_.push_back(std::move(block));
  }
  if (first) wake();
}

void Session::refill(const std::shared_ptr<NamespaceEntry>& ns) {
  if (read_only() || ns->users == 0) return;
  for (const Tier tier : kMemoryTiers) {
    const std::uint32_t count = ns->pool(tier).claim(Clock::now());
    if (count == 0) continue;
    if (!post([this, ns, tier, count] { ask_slots(ns, tier, count); })) ns->pool(tier).give_up();
  }
}

void Session::report_bad(const Key& key) {
  if (read_only()) return;
  {
    const std::lock_guard lock(mutex_);
    if (bad_keys_.size() < kBadKeysMax) bad_keys_.push_back(key);
  }
  post([this] { report_soon_ = true; });
}

Result<void> Session::flush(Deadline deadline) {
  if (read_only()) return {};  // nothing of ours is on its way
  const auto outcome = std::make_shared<Outcome>();
  if (!post([this, outcome] { add_flush({outcome}); })) return closed();
  if (auto result = outcome->wait(deadline)) return narrowed(*result, Errc::unavailable);
  Counters::add(counters_.deadlines_missed);
  return make_error(Errc::deadline, "kvtierd did not finish a flush in time");
}

void Session::take_mail() {
  std::vector<std::function<void()>> tasks;
  std::vector<FilledBlock> commits;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
    commits.swap(commits_);
    close_asked_ = closing_;
  }
  // Blocks first: a flush among the tasks covers them.
  if (!commits.empty()) send_commits(std::move(commits));
  for (auto& task : tasks) task();
}

void Session::run() {
  ask_for_short_turns();
  while (!close_asked_) turn();
  finish_closing();
}

void Session::turn() {
  std::uint64_t ignored;
  [[maybe_unused]] const auto read = ::read(wake_fd_.get(), &ignored, sizeof ignored);
  take_mail();
  if (close_asked_) return;
  const auto now = Clock::now();
  if (!socket_ && now >= extents_until_) extents_.clear();
  if (!socket_ && now >= next_attempt_) connect(now);
  if (connection_ && owes_let_go_) let_go_of_old_slots();
  if (connection_ && next_shed_ && now >= *next_shed_) shed_idle(now);
  settle_flushes(now);
  if (connection_ && (report_soon_ || now >= next_report_)) send_report(now);
  if (socket_) send();
  if (socket_ && !broken_) {
    if (auto good = check_answers(); !good) broken_ = good.error();
  }
  if (broken_) drop(last_words(*std::exchange(broken_, {})));
  directory_.collect();

  const auto events = static_cast<short>(POLLIN | (socket_.unsent() ? POLLOUT : 0));
  pollfd fds[2] = {{wake_fd_.get(), POLLIN, 0}, {socket_.fd(), events, 0}};
  ::poll(fds, socket_ ? 2 : 1, timeout_ms(Clock::now()));
  KVTIER_POINT("client.session.woken");
  if (socket_ && (fds[1].revents & ~POLLOUT) != 0) {
    if (auto good = receive(); !good) drop(good.error());
  }
}

int Session::timeout_ms(Clock::time_point now) const {
  auto next = socket_ ? now + std::chrono::hours(1) : next_attempt_;
  if (connection_) next = std::min(next, next_report_);
  if (connection_ && next_shed_) next = std::min(next, *next_shed_);
  for (const Flush& flush : settling_) next = std::min(next, flush.settled_by);
  if (!pending_.empty()) next = std::min(next, now + answer_max_ / 10);
  const auto left = std::chrono::ceil<milliseconds>(next - now).count();
  return static_cast<int>(std::clamp<long>(left, 0, 60'000));
}

void Session::finish_closing() {
  if (connection_) {
    send_report(Clock::now());
    abandon_pools();
    KVTIER_POINT("client.session.closing");
    const auto until = Clock::now() + kCloseMax;
    // Slots on their way are waited for: the daemon must not give any to others until somebody has
    // said that nothing writes to it, and after us nobody does.
    while ((socket_.unsent() || slots_asked_ > 0) && !broken_ && Clock::now() < until) {
      send();
      if (!socket_.unsent() && slots_asked_ == 0) break;
      const auto events = static_cast<short>(POLLIN | (socket_.unsent() ? POLLOUT : 0));
      pollfd fd{socket_.fd(), events, 0};
      ::poll(&fd, 1, 10);
      if ((fd.revents & ~POLLOUT) == 0) continue;
      if (auto good = receive(); !good) broken_ = good.error();
      abandon_pools();
    }
  }
  fail_everything(closed());
  extents_.clear();
}

void Session::connect(Clock::time_point now) {
  const auto jittered =
      delay_.count() / 2 + static_cast<long>(jitter_() % (delay_.count() / 2 + 1));
  next_attempt_ = now + milliseconds(jittered);
  delay_ = std::min(delay_ * 2, std::max(options_.reconnect_delay_max, kReconnectDelayMin));
  auto fd = connect_unix(options_.socket);
  if (!fd) {
    const std::lock_guard lock(mutex_);
    last_failure_ = fd.error().message;
    return;
  }
  socket_ = ControlSocket(std::move(*fd));
  last_received_ = now;
  say_hello();
}

// A daemon that has hung up may have said why.
Error Session::last_words(const Error& otherwise) {
  if (otherwise.code != Errc::unavailable) return otherwise;
  const auto heard = receive();
  return !heard && heard.error().code == Errc::refused ? heard.error() : otherwise;
}

void Session::drop(const Error& why) {
  const auto now = Clock::now();
  const bool proven = connection_ && now - welcomed_at_ >= kSessionProven;
  if (proven) delay_ = kReconnectDelayMin;
  fail_everything(make_error(Errc::unavailable, "the connection to kvtierd ended: " + why.message));
  const std::lock_guard lock(mutex_);
  last_failure_ = why.message;
  next_attempt_ = now + (proven ? delay_ / 2 : delay_);
}

void Session::fail_everything(const Error& why) {
  if (connection_) {
    connection_->end();
    old_rights_.push_back(std::exchange(right_, nullptr));
    owes_let_go_ = true;
    extents_until_ = Clock::now() + kMappingsKeptMax;
  }
  {
    const std::lock_guard lock(mutex_);
    connected_ = false;
  }
  directory_.publish(nullptr);
  socket_ = {};
  for (auto& [id, pending] : std::exchange(pending_, {})) {
    [[maybe_unused]] const auto ignored = pending.done(why);
  }
  flushing_ = false;
  for (const Flush& flush : std::exchange(flushes_, {})) flush.outcome->set(why);
  for (const Flush& flush : std::exchange(settling_, {})) flush.outcome->set(why);
  next_shed_.reset();
  for (auto& [id, weak] : std::exchange(leases_, {})) {
    if (const auto hold = weak.lock()) hold->wake();
  }
  for (const auto& ns : all_namespaces()) {
    for (SlotPool& pool : ns->pools) pool.clear();
    ns->state = NamespaceEntry::State::closed;
    for (auto& use : std::exchange(ns->waiting, {})) use(why);
  }
  connection_.reset();
  broken_.reset();
  slots_changed_();
}

}  // namespace kvtier::session
