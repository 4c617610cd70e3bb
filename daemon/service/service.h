// kvtierd as a service: the signals, what the service manager is told and when, and the watchdog.
// Lives on the control thread.
#pragma once

#include <boost/asio/signal_set.hpp>
#include <optional>
#include <string>

#include "daemon/server/server.h"
#include "daemon/service/service_manager.h"
#include "daemon/service/watchdog.h"

namespace kvtier::daemon {

class Service {
 public:
  // To be made before server.start(), whose progress it reports. `config_file` is read again on
  // SIGHUP; empty where there is none. The server outlives this.
  Service(Server& server, std::string config_file);

  // The server has started: says so as soon as the loop turns, and keeps the watchdog fed.
  void serving();

 private:
  void wait_for_signal();
  void reload();
  void stop();
  std::string state() const;

  Server& server_;
  std::string config_file_;
  ServiceManager manager_;
  boost::asio::signal_set signals_;
  std::optional<Watchdog> watchdog_;
  std::string note_;  // of the last reload
};

}  // namespace kvtier::daemon
