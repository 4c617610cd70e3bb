// Whether a host is fit for kvtierd: each check says what was seen, and a command that mends it.
#pragma once

#include <string>
#include <vector>

#include "ctl/check/host.h"
#include "ctl/commands.h"

namespace kvtier::ctl {

// What kvtierd takes of the host: from the running one, or from its configuration.
struct Setup {
  bool running = false;
  std::uint32_t pid = 0;
  std::string version;
  std::uint64_t host_bytes = 0, host_taken = 0;      // cap, and what is in extents by now
  std::uint64_t device_bytes = 0, device_taken = 0;  // where host memory stands in for GPUs
  bool cuda = false;
  struct Disk {
    std::string directory;
    std::uint64_t cap_bytes = 0;   // of segments
    std::uint64_t file_bytes = 0;  // allocated under the directory, index included
  };
  std::vector<Disk> disks;
};

struct Check {
  enum class State { ok, warning, failed } state = State::ok;
  std::string check, seen, mend;  // mend: a command to copy; empty where all is well
};

struct CheckOptions {
  Target target;
  std::string config;  // read where the daemon is not running
};

// {"checks": [{"check", "state", "seen", "mend"}], "warnings": n, "failed": n}
Json check_system(const CheckOptions& options);
Json check_system(const CheckOptions& options, const Host& host);

// Each part, for check_system() and for tests.
using Checks = std::vector<Check>;
Setup setup_of(const Json& status);
// Errors: io, invalid. Keys that are not there have the daemon's defaults.
Result<Setup> setup_from_config(const std::string& text);
void check_socket(Checks& out, const Host& host, const std::string& socket, const Setup& setup);
void check_memory(Checks& out, const Host& host, const Setup& setup);
void check_kernel(Checks& out, const Host& host, const Setup& setup);
void check_gpus(Checks& out, const Host& host, const Setup& setup);
void check_disks(Checks& out, const Host& host, const Setup& setup);

}  // namespace kvtier::ctl
