#include "daemon/service/watchdog.h"

#include <utility>

namespace kvtier::daemon {

Watchdog::Watchdog(const boost::asio::any_io_executor& control, std::chrono::microseconds time,
                   std::function<void()> alive)
    : every_(time / 3), alive_(std::move(alive)), timer_(control) {
  if (every_.count() > 0) feed();
}

void Watchdog::feed() {
  alive_();
  timer_.expires_after(every_);
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) feed();
  });
}

}  // namespace kvtier::daemon
