// Who a session's client is, as its connection shows it and as it said in hello.
#pragma once

#include <chrono>
#include <cstdint>

#include "core/wire/directory.h"
#include "daemon/cache/loans/reservations.h"

namespace kvtier::daemon {

struct ClientOfSession {
  SessionId session = 0;
  ProcessId process;
  std::uint64_t id = 0;              // what it calls itself in all its sessions; 0: nothing
  std::uint32_t device = kNoDevice;  // its GPU's number
  bool read_only = false;
  bool answers_recalls = false;
  bool knows_remote = false;               // the tier, by its name
  std::chrono::milliseconds lease_time{};  // as it was told
};

}  // namespace kvtier::daemon
