#include "engine_adapter/reference/scheduler/scheduler.h"

#include <string>

#include "core/base/check.h"
#include "engine_adapter/reference/scheduler/engine.h"
#include "engine_adapter/reference/scheduler/limits.h"
#include "engine_adapter/reference/scheduler/pages/park_report.h"
#include "engine_adapter/reference/scheduler/prefix/lease_worker.h"
#include "engine_adapter/reference/scheduler/request_check.h"

namespace kvtier::engine {

struct Scheduler::Arrival {
  RequestId id;
  Request request;
  CacheSpace space;
  std::shared_ptr<RequestListener> listener;
};

Scheduler::Scheduler(Model& model, PagePool& pool, CacheSpaces& spaces,
                     const SchedulerOptions& options)
    : model_(model), pool_(pool), spaces_(spaces), options_(options) {
  KVTIER_CHECK(options.validate().has_value());
  worker_ = std::make_unique<ThreadLeases>([this] {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    changed_.notify_one();
  });
  engine_ = std::make_unique<Engine>(model, pool, *worker_, options);
  metrics_ = engine_->metrics();
  thread_ = std::thread([this] { run(); });
}

Scheduler::~Scheduler() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
  worker_.reset();
  engine_.reset();
}

Result<RequestId> Scheduler::submit(Request request, std::shared_ptr<RequestListener> listener) {
  KVTIER_CHECK(listener != nullptr);
  const auto refuse = [this](Error error) {
    const std::lock_guard lock(mutex_);
    ++refused_;
    return error;
  };
  if (auto good = check_request(request, model_, pool_, options_); !good) {
    return refuse(good.error());
  }
  auto space = spaces_.space(request.cache_salt);
  if (!space) return refuse(space.error());
  RequestId id(0);
  {
    const std::lock_guard lock(mutex_);
    if (metrics_.waiting + arrivals_.size() >= options_.waiting_max) {
      ++refused_;
      return make_error(Errc::refused,
                        "the queue is full: " + std::to_string(options_.waiting_max) +
                            " requests are waiting; try again later");
    }
    id = RequestId(next_id_++);
    arrivals_.push_back({id, std::move(request), std::move(*space), std::move(listener)});
    woken_ = true;
  }
  changed_.notify_one();
  return id;
}

void Scheduler::cancel(RequestId request) {
  {
    const std::lock_guard lock(mutex_);
    cancels_.push_back(request);
    woken_ = true;
  }
  changed_.notify_one();
}

SchedulerMetrics Scheduler::metrics() const {
  const std::lock_guard lock(mutex_);
  SchedulerMetrics metrics = metrics_;
  metrics.refused = refused_;
  metrics.waiting += static_cast<std::uint32_t>(arrivals_.size());
  return metrics;
}

std::chrono::nanoseconds Scheduler::in_turn() const noexcept {
  const auto since = turn_since_.load();
  if (since == 0) return {};
  return Clock::now() - Clock::time_point(Clock::duration(since));
}

void Scheduler::run() {
  ParkReport parks(options_.tell);
  bool moved = true;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!moved && !woken_ && !stopping_) {
      const auto awake = [&] { return woken_ || stopping_; };
      if (!engine_->idle()) {
        changed_.wait_for(lock, engine_->busy() ? kPollInterval : kIdlePollInterval, awake);
      } else if (const auto due = engine_->offer_due()) {
        changed_.wait_until(lock, *due, awake);
      } else {
        changed_.wait(lock, awake);
      }
    }
    woken_ = false;
    auto arrivals = std::exchange(arrivals_, {});
    const auto cancels = std::exchange(cancels_, {});
    // Counted here until the engine's own count is seen.
    metrics_.waiting += static_cast<std::uint32_t>(arrivals.size());
    const bool stopping = stopping_;
    lock.unlock();
    for (Arrival& arrival : arrivals) {
      engine_->add(arrival.id, std::move(arrival.request), std::move(arrival.space),
                   std::move(arrival.listener));
    }
    for (const RequestId id : cancels) engine_->cancel(id);
    if (stopping) {
      engine_->cancel_all();
      return;
    }
    turn_since_.store(Clock::now().time_since_epoch().count());
    moved = engine_->turn();
    turn_since_.store(0);
    const SchedulerMetrics metrics = engine_->metrics();
    parks.look(metrics, Clock::now());
    lock.lock();
    metrics_ = metrics;
  }
}

}  // namespace kvtier::engine
