// The end of a daemon: what waits for the disk is written, for a bounded time, and the tiers are
// closed, for another.
//
// Owned by the control thread, and begun once, when nobody is served any more. `done` is called
// once, whatever the disks do, and after it nothing of the tiers' backing moves any more, but for
// a disk's thread that was left behind.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <string>

#include "daemon/server/tiers.h"

namespace kvtier::daemon {

class Stop {
 public:
  struct Ports {
    std::function<void(const std::string&)> progress;
    // `closed`: every disk's thread has ended.
    std::function<void(bool closed)> done;
  };
  // `tiers` outlives this.
  Stop(const boost::asio::any_io_executor& control, Tiers& tiers, Ports ports)
      : tiers_(tiers), ports_(std::move(ports)), deadline_(control), report_(control) {}

  void begin(std::chrono::milliseconds time_to_save);

 private:
  void report();
  void finish();

  Tiers& tiers_;
  const Ports ports_;
  boost::asio::steady_timer deadline_, report_;
  bool finished_ = false;
};

}  // namespace kvtier::daemon
