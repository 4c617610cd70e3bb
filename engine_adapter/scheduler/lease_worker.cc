#include "engine_adapter/scheduler/lease_worker.h"

namespace kvtier::engine {

void LeaseTicket::ask_now() {
  if (given_up.load() || Clock::now() >= deadline) {
    answer.emplace(make_error(Errc::deadline, "the request's deadline passed before its lease"));
  } else {
    answer.emplace(cache->lease(tokens, range, deadline));
  }
  answered.store(true, std::memory_order_release);
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
    ticket->ask_now();
    answered_();
    lock.lock();
  }
}

}  // namespace kvtier::engine
