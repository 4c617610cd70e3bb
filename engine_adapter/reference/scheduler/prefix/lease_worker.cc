#include "engine_adapter/reference/scheduler/prefix/lease_worker.h"

namespace kvtier::engine {

void LeaseWorker::ask_now(LeaseTicket& ticket) {
  if (ticket.looks_up) {
    if (!ticket.given_up.load() && Clock::now() < ticket.deadline) {
      Prefix prefix = ticket.cache->prefix();
      (void)prefix.append(ticket.tokens);  // refused where digests name blocks, as in none of ours
      (void)ticket.cache->look_up(prefix, ticket.deadline);
    }
    ticket.answered.store(true, std::memory_order_release);
    return;
  }
  if (ticket.given_up.load() || Clock::now() >= ticket.deadline) {
    ticket.answer.emplace(
        make_error(Errc::deadline, "the request's deadline passed before its lease"));
  } else {
    ticket.answer.emplace(ticket.cache->lease(ticket.tokens, ticket.range, ticket.deadline));
    const auto& answer = *ticket.answer;
    silent_.store(!answer && answer.error().code == Errc::deadline, std::memory_order_relaxed);
  }
  ticket.answered.store(true, std::memory_order_release);
}

ThreadLeases::ThreadLeases(std::function<void()> answered)
    : answered_(std::move(answered)), thread_([this] { run(); }) {}

ThreadLeases::~ThreadLeases() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void ThreadLeases::ask(std::shared_ptr<LeaseTicket> ticket) {
  {
    const std::lock_guard lock(mutex_);
    tickets_.push_back(std::move(ticket));
  }
  changed_.notify_one();
}

void ThreadLeases::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !tickets_.empty(); });
    if (stopping_) return;
    const auto ticket = std::move(tickets_.front());
    tickets_.pop_front();
    lock.unlock();
    ask_now(*ticket);
    answered_();
    lock.lock();
  }
}

}  // namespace kvtier::engine
