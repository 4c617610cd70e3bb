// How the remote tier is used; its store has options of its own (storage/remote/remote_options.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/config/tenants.h"

namespace kvtier::daemon {

struct RemoteTierOptions {
  RemoteAdmission admission = RemoteAdmission::second_use;
  std::uint32_t known_max = 1U << 18;  // entries of blocks that are nowhere else
  std::chrono::milliseconds lookup_timeout{5};
  std::chrono::milliseconds read_timeout{1000};
  std::chrono::milliseconds absent_time{1000};
  std::uint32_t write_queue_max = 1024;               // blocks
  std::uint64_t write_queue_bytes_max = 64ULL << 20;  // of host memory held for them
  std::uint32_t writes_submitted_max = 32;
  // By tenant; past its end: they may be there. Those of the others stay on this host.
  std::vector<bool> stays_here = {};
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
  bool may_have(TenantId tenant) const noexcept {
    return tenant >= stays_here.size() || !stays_here[tenant];
  }
};

// Runs a task on the control thread after a time.
using After = std::function<void(std::chrono::milliseconds, std::function<void()>)>;

}  // namespace kvtier::daemon
