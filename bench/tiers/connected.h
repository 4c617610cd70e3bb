// An engine's connection to the daemon that is measured.
#pragma once

#include "bench/support/daemon_child.h"
#include "bench/support/records.h"
#include "kvtier/client.h"

namespace kvtier::bench {

// Throws std::runtime_error, if it is not connected soon.
inline std::shared_ptr<Client> connected(const DaemonChild& daemon, const char* name) {
  ClientOptions options;
  options.socket = daemon.socket();
  options.name = name;
  auto client = need(Client::start(options));
  need(client->wait_connected(std::chrono::steady_clock::now() + std::chrono::seconds(10)));
  return client;
}

}  // namespace kvtier::bench
