// How long the control thread's turns are: from the start of a handler to its end. Everything that
// the thread does passes through executor(), or through a Scope of its own where somebody else's
// handler calls in. Owned by the control thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/execution.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/query.hpp>
#include <boost/asio/require.hpp>
#include <chrono>
#include <type_traits>
#include <utility>

#include "daemon/telemetry.h"

namespace kvtier::daemon {

class Turns {
 public:
  using Clock = std::chrono::steady_clock;

  // Outlives everything that executor() runs.
  explicit Turns(boost::asio::io_context& io) : io_(io) {}
  Turns(const Turns&) = delete;

  // Runs handlers on the control thread, and takes their time.
  boost::asio::any_io_executor executor() { return Timed(io_.get_executor(), *this); }

  // One turn, or a part of the turn that it lies in.
  class Scope {
   public:
    explicit Scope(Turns& turns) : turns_(turns) {
      if (turns_.depth_++ == 0) turns_.began_ = Clock::now();
    }
    ~Scope() {
      if (--turns_.depth_ == 0) turns_.ended(Clock::now());
    }
    Scope(const Scope&) = delete;

   private:
    Turns& turns_;
  };

  const Histogram& us() const noexcept { return us_; }
  std::chrono::microseconds longest() const noexcept { return wall_.greatest(); }
  // The most processor time that one took, to a millisecond: what is missing of the time it took
  // the thread waited, or did not run because others did.
  std::chrono::microseconds longest_cpu() const noexcept { return cpu_.greatest(); }

 private:
  template <class Inner>
  class TimedExecutor {
   public:
    TimedExecutor(Inner inner, Turns& turns) noexcept : inner_(std::move(inner)), turns_(&turns) {}

    template <class Property>
    auto query(const Property& property) const
        noexcept(boost::asio::is_nothrow_query<const Inner&, const Property&>::value)
            -> decltype(boost::asio::query(std::declval<const Inner&>(), property)) {
      return boost::asio::query(inner_, property);
    }
    template <class Property>
    auto require(const Property& property) const -> TimedExecutor<
        std::decay_t<decltype(boost::asio::require(std::declval<const Inner&>(), property))>> {
      return {boost::asio::require(inner_, property), *turns_};
    }
    template <class Property>
    auto prefer(const Property& property) const -> TimedExecutor<
        std::decay_t<decltype(boost::asio::prefer(std::declval<const Inner&>(), property))>> {
      return {boost::asio::prefer(inner_, property), *turns_};
    }
    template <class Handler>
    void execute(Handler&& handler) const {
      inner_.execute([turns = turns_, run = std::forward<Handler>(handler)]() mutable {
        const Scope scope(*turns);
        std::move(run)();
      });
    }
    friend bool operator==(const TimedExecutor& a, const TimedExecutor& b) noexcept {
      return a.inner_ == b.inner_ && a.turns_ == b.turns_;
    }
    friend bool operator!=(const TimedExecutor& a, const TimedExecutor& b) noexcept {
      return !(a == b);
    }

   private:
    Inner inner_;
    Turns* turns_;
  };
  using Timed = TimedExecutor<boost::asio::io_context::executor_type>;

  void ended(Clock::time_point now);

  boost::asio::io_context& io_;
  std::uint32_t depth_ = 0;
  Clock::time_point began_{};
  Histogram us_;
  RecentGreatest wall_, cpu_;
  // The thread's processor time is asked for once a millisecond at most: it is a system call.
  Clock::time_point cpu_read_{};
  std::chrono::microseconds cpu_at_{};
};

}  // namespace kvtier::daemon
