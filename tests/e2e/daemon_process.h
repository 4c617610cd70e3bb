// A real kvtierd as a child process with a directory of its own, for tests. Where the tests run
// apart from their build, KVTIER_TEST_KVTIERD names the program and KVTIER_TEST_SCRATCH a
// directory.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "kvtier/deadline.h"
#include "kvtier/tier.h"
#include "tests/daemon/support/service_manager.h"

namespace kvtier::e2e {

struct DaemonOptions {
  std::string device_capacity = "0";
  std::string device_backend = "memory";
  std::string host_capacity = "16MiB";
  std::string extent_size = "1MiB";
  std::string disk_capacity = "64MiB";  // empty: no disk tier
  std::string segment_size = "1MiB";
  std::uint32_t lease_time_ms = 30'000;
  bool kept = false;   // a manager keeps its memory over restarts
  std::string more{};  // of the configuration: sections of their own
};

// Long after whatever a test waits for.
inline Deadline soon() {
  return Clock::now() + std::chrono::seconds(30);
}

struct DaemonStatus {
  std::array<std::uint64_t, kTiers> hits{}, blocks{}, used_bytes{}, taken_bytes{}, cap_bytes{},
      evictions{};
  std::uint64_t gpu_used_bytes = 0, gpu_reserved_bytes = 0;  // of all GPUs: records, other slots
  std::uint64_t leases = 0, reserved = 0, quarantined = 0, looked_up = 0, misses = 0, faults = 0;
};

class DaemonProcess {
 public:
  // Makes the directory and the configuration; starts nothing.
  explicit DaemonProcess(const DaemonOptions& options = {});
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;

  // Waits until it answers; aborts the test if it does not.
  void start();
  // Sends `signal` and, for one that ends it, waits for the end.
  void send(int signal);
  bool running() const noexcept { return pid_ > 0; }
  void kill_and_start();
  void stop_and_start();
  // Has it read another configuration. Does not wait until it has.
  void reload(const DaemonOptions& options);

  DaemonStatus status() const;
  // Drops everything that nobody holds from these tiers (bits; 0: all).
  void drop(TierSet tiers) const;

  std::string socket() const { return (directory_ / "d.sock").string(); }
  const std::filesystem::path& directory() const noexcept { return directory_; }

 private:
  std::filesystem::path directory_;
  std::unique_ptr<ServiceManager> manager_;
  pid_t pid_ = -1;
};

}  // namespace kvtier::e2e
