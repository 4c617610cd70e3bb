// Tells the service manager that the control loop turns, from a timer on that loop itself: a loop
// that does not progress says nothing, and is killed and started again.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>

namespace kvtier::daemon {

class Watchdog {
 public:
  // Calls `alive` three times in `time`, from now on and on the control thread; never where `time`
  // is zero.
  Watchdog(const boost::asio::any_io_executor& control, std::chrono::microseconds time,
           std::function<void()> alive);

 private:
  void feed();

  std::chrono::microseconds every_;
  std::function<void()> alive_;
  boost::asio::steady_timer timer_;
};

}  // namespace kvtier::daemon
