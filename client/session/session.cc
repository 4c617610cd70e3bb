// What any thread may ask of the session, and its thread's turn.
#include "client/session/session.h"

#include <poll.h>

#include <algorithm>

#include "client/session/limits.h"
#include "client/session/thread/wire_values.h"
#include "core/base/check.h"
#include "core/base/points.h"
#include "core/base/thread_priority.h"

namespace kvtier::session {
namespace {

Error closed() {
  return make_error(Errc::unavailable, "the client is closed");
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
      client_id_(random_number()),
      log_(options_.log, options_.log_level),
      mailbox_(std::move(wake_fd)),
      read_only_(options_.read_only),
      conversation_(options_.socket, answer_max),
      extents_(std::move(gpu)),
      namespaces_(
          conversation_,
          [this](const auto& ns) {
            refill(ns);
            announce();
          },
          slots_changed_,
          [this](const auto& ns) {
            log_.line(
                Topic::name_space, LogLevel::error,
                "namespace of model " + ns->ns.model + " was not opened: " + ns->refusal().message);
            announce();
          }),
      leases_(conversation_, extents_),
      slots_(conversation_, extents_, namespaces_, slots_changed_),
      flushes_(conversation_, namespaces_),
      commits_(conversation_, counters_, slots_changed_),
      reports_(conversation_, namespaces_, counters_),
      hints_(conversation_),
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
  mailbox_.close();
  if (thread_.joinable()) thread_.join();
}

Result<void> Session::wait_connected(Deadline deadline) {
  std::unique_lock lock(mutex_);
  state_changed_.wait_until(lock, deadline, [&] { return connected() || closing_; });
  if (closing_) return closed();
  if (connected()) return {};
  Counters::add(counters_.deadlines_missed);
  return make_error(Errc::deadline, "not connected to kvtierd: " + last_failure_.message);
}

void Session::announce() {
  const std::lock_guard lock(mutex_);
  state_changed_.notify_all();
}

Result<void> Session::state_locked(const NamespaceEntry& ns) const {
  const auto state = ns.state.load();
  if (state == NamespaceEntry::State::open) return {};
  if (state == NamespaceEntry::State::refused) return ns.refusal();
  if (closing_) return closed();
  if (connected()) return make_error(Errc::unavailable, "kvtierd has not opened the namespace yet");
  return make_error(last_failure_.code, "not connected to kvtierd: " + last_failure_.message);
}

Result<void> Session::state(const NamespaceEntry& ns) const {
  const std::lock_guard lock(mutex_);
  return state_locked(ns);
}

Result<void> Session::wait_open(const NamespaceEntry& ns, Deadline deadline) {
  std::unique_lock lock(mutex_);
  Result<void> state;
  const bool in_time = state_changed_.wait_until(lock, deadline, [&] {
    state = state_locked(ns);
    return state || state.error().code != Errc::unavailable || closing_;
  });
  if (in_time) return state;
  Counters::add(counters_.deadlines_missed);
  return make_error(Errc::deadline, "the namespace is not open: " + state.error().message);
}

bool Session::may_get_slots(const NamespaceEntry& ns) const noexcept {
  return connected() && !read_only() && ns.state != NamespaceEntry::State::refused;
}

void Session::note_dropped(DropReason why, std::uint64_t blocks) {
  if (blocks == 0) return;
  counters_.drop(why, blocks);
  if (log_.wants(LogLevel::warning)) {
    log_.line(Topic::drop, LogLevel::warning,
              std::to_string(blocks) + " blocks were not written back: " + name(why));
  }
}

std::shared_ptr<NamespaceEntry> Session::open(const Namespace& ns) {
  const auto [entry, is_new] = namespaces_.find_or_add(ns, options_.slots_ahead);
  if (!is_new) return entry;
  const bool posted = mailbox_.post([this, entry = entry] {
    if (!conversation_.connection()) return give_up(*entry);
    // A welcome may have opened it already.
    if (entry->state == NamespaceEntry::State::closed) namespaces_.open(entry);
  });
  if (!posted) give_up(*entry);
  return entry;
}

void Session::give_back_if_unused(const std::shared_ptr<NamespaceEntry>& ns) {
  if (ns->users != 0) return;
  mailbox_.post([this, ns] {
    if (ns->users != 0) return;
    for (SlotPool& pool : ns->pools) slots_.abandon(pool.shed(0));
  });
}

void Session::put_back(const std::shared_ptr<NamespaceEntry>& ns, Tier tier, ReservedSlot slot) {
  ns->pool(tier).put_back(std::move(slot));
  give_back_if_unused(ns);
}

// A lookup is counted by whoever hears of it: the daemon, once the request is sent; we, in the next
// report, where it is not.
Result<void> Session::lease(const std::shared_ptr<HeldBlocks>& hold, Deadline deadline) {
  const auto outcome = std::make_shared<Outcome>();
  const bool posted = mailbox_.post([this, hold, outcome] {
    namespaces_.with_handle(hold->ns(), [this, hold, outcome](Result<std::uint32_t> handle) {
      if (handle) return leases_.ask(*handle, hold, outcome);
      hold->ns().missed += hold->looked_up();
      outcome->set(handle.error());
    });
  });
  if (!posted) return closed();
  if (auto result = outcome->wait(deadline)) return narrowed(*result, Errc::refused);
  Counters::add(counters_.deadlines_missed);
  return make_error(Errc::deadline, "kvtierd did not answer a lease request in time");
}

Result<void> Session::look_up(const std::shared_ptr<NamespaceEntry>& ns, std::vector<Key> keys,
                              Deadline deadline) {
  const auto outcome = std::make_shared<Outcome>();
  const bool posted = mailbox_.post([this, ns, keys = std::move(keys), outcome] {
    namespaces_.with_handle(*ns, [this, keys, outcome](Result<std::uint32_t> handle) {
      if (handle && has_remote()) return leases_.look_up(*handle, keys, outcome);
      outcome->set(handle ? Result<void>() : handle.error());
    });
  });
  if (!posted) return closed();
  if (auto result = outcome->wait(deadline)) return narrowed(*result, Errc::refused);
  Counters::add(counters_.deadlines_missed);
  return make_error(Errc::deadline, "kvtierd did not answer a lookup in time");
}

Result<void> Session::lease_async(const std::shared_ptr<HeldBlocks>& hold, Deadline deadline) {
  hold->expect_answer();
  const bool posted = mailbox_.post([this, hold, deadline] {
    leases_.watch(deadline, hold);
    namespaces_.with_handle(hold->ns(), [this, hold](Result<std::uint32_t> handle) {
      if (handle) return leases_.ask(*handle, hold, nullptr);
      hold->ns().missed += hold->looked_up();
      hold->answered(narrowed(handle.error(), Errc::refused));
    });
  });
  return posted ? Result<void>{} : closed();
}

void Session::release(const std::shared_ptr<const Connection>& connection, std::uint64_t lease,
                      std::optional<std::uint32_t> usable) {
  mailbox_.post([this, connection, lease, usable] {
    if (conversation_.connection() != connection) return;
    // Believed only while the blocks are held.
    if (reports_.wanted_soon()) reports_.send(Clock::now());
    leases_.release(lease, usable);
  });
}

void Session::commit(std::vector<FilledBlock> blocks) {
  const auto now = Clock::now();
  for (const FilledBlock& block : blocks) {
    for (const ReservedSlot& slot : block.slots) block.ns->pool(slot.ref.extent->tier).filled(now);
  }
  mailbox_.commit(std::move(blocks));
}

// Most are of some hundred keys; what is not sent soon is of little use.
Result<void> Session::hint(const std::shared_ptr<NamespaceEntry>& ns, std::uint32_t first,
                           std::vector<Key> keys, const Hint& hint) {
  if (!connected()) return not_connected();
  if (hints_queued_.fetch_add(1) >= kHintsQueuedMax) {
    --hints_queued_;
    return make_error(Errc::no_space, "too many hints wait to be sent");
  }
  const bool posted = mailbox_.post([this, ns, first, keys = std::move(keys), hint] {
    --hints_queued_;
    if (!conversation_.connection()) return;
    namespaces_.with_handle(*ns, [this, first, keys, hint](Result<std::uint32_t> handle) {
      if (handle) hints_.send(*handle, first, keys, hint);
    });
  });
  if (posted) return {};
  --hints_queued_;
  return closed();
}

void Session::refill(const std::shared_ptr<NamespaceEntry>& ns) {
  if (read_only() || ns->users == 0) return;
  for (const Tier tier : kMemoryTiers) {
    const std::uint32_t count = ns->pool(tier).claim(Clock::now());
    if (count == 0) continue;
    if (!mailbox_.post([this, ns, tier, count] { slots_.ask(ns, tier, count); }))
      ns->pool(tier).give_up();
  }
}

void Session::report_bad(const Key& key) {
  if (read_only()) return;
  reports_.note_bad(key);
  mailbox_.post([this] { reports_.want_soon(); });
}

Result<void> Session::flush(Deadline deadline) {
  if (read_only()) return {};  // nothing of ours is on its way
  const auto outcome = std::make_shared<Outcome>();
  if (!mailbox_.post([this, outcome] { flushes_.add(outcome); })) return closed();
  if (auto result = outcome->wait(deadline)) return narrowed(*result, Errc::unavailable);
  Counters::add(counters_.deadlines_missed);
  return make_error(Errc::deadline, "kvtierd did not finish a flush in time");
}

void Session::run() {
  ask_for_short_turns();
  while (!close_asked_) turn();
  finish_closing();
}

void Session::take_mail() {
  Mailbox::Mail mail = mailbox_.take();
  close_asked_ = mail.closed;
  // Blocks first: a flush among the tasks covers them.
  if (!mail.commits.empty()) commits_.send(std::move(mail.commits));
  for (auto& task : mail.tasks) task();
}

void Session::turn() {
  mailbox_.quieten();
  take_mail();
  if (close_asked_) return;
  const auto now = Clock::now();
  if (!conversation_.is_open()) extents_.drop_if_over(now);
  if (!conversation_.is_open() && now >= next_attempt_) connect(now);
  if (conversation_.connection()) slots_.look_after(now);
  flushes_.settle(now);
  leases_.expire(now);
  if (conversation_.connection() && reports_.is_due(now)) reports_.send(now);
  if (conversation_.is_open()) conversation_.send();
  if (conversation_.is_open() && !conversation_.is_broken()) {
    if (auto good = check_answers(); !good) conversation_.note_broken(good.error());
  }
  if (const auto broken = conversation_.take_broken()) drop(last_words(*broken));
  directory_.collect();

  const auto events = static_cast<short>(POLLIN | (conversation_.unsent() ? POLLOUT : 0));
  pollfd fds[2] = {{mailbox_.wake_fd(), POLLIN, 0}, {conversation_.fd(), events, 0}};
  ::poll(fds, conversation_.is_open() ? 2 : 1, timeout_ms(Clock::now()));
  KVTIER_POINT("client.session.woken");
  if (conversation_.is_open() && (fds[1].revents & ~POLLOUT) != 0) {
    if (auto good = receive(); !good) drop(good.error());
  }
}

int Session::timeout_ms(Clock::time_point now) const {
  auto next = conversation_.is_open() ? now + std::chrono::hours(1) : next_attempt_;
  if (conversation_.connection()) {
    next = std::min(next, reports_.next());
    if (const auto shed = slots_.next_shed()) next = std::min(next, *shed);
  }
  if (const auto late = flushes_.next_late()) next = std::min(next, *late);
  if (const auto due = leases_.next_due()) next = std::min(next, *due);
  if (conversation_.owes_answers()) next = std::min(next, now + conversation_.answer_max() / 10);
  const auto left = std::chrono::ceil<milliseconds>(next - now).count();
  return static_cast<int>(std::clamp<long>(left, 0, 60'000));
}

void Session::finish_closing() {
  if (conversation_.connection()) {
    reports_.send(Clock::now());
    slots_.abandon_pools();
    KVTIER_POINT("client.session.closing");
    const auto until = Clock::now() + kCloseMax;
    // Slots on their way are waited for: the daemon must not give any to others until somebody has
    // said that nothing writes to it, and after us nobody does.
    while ((conversation_.unsent() || slots_.asked() > 0) && !conversation_.is_broken() &&
           Clock::now() < until) {
      conversation_.send();
      if (!conversation_.unsent() && slots_.asked() == 0) break;
      const auto events = static_cast<short>(POLLIN | (conversation_.unsent() ? POLLOUT : 0));
      pollfd fd{conversation_.fd(), events, 0};
      ::poll(&fd, 1, 10);
      if ((fd.revents & ~POLLOUT) == 0) continue;
      if (auto good = receive(); !good) conversation_.note_broken(good.error());
      slots_.abandon_pools();
    }
  }
  fail_everything(closed());
  extents_.clear();
}

}  // namespace kvtier::session
