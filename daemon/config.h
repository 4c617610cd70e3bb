// The configuration of kvtierd: a TOML file (systemd/kvtierd.toml explains every key). Every value
// has a default but the disk directories, without which there is no disk tier.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kvtier/result.h"

namespace kvtier::daemon {

// Which committed blocks are written to disk: all; those leased or committed again while they are
// in the host tier; none.
enum class Admission { all, second_hit, none };

// What the device tier is made of: memory of GPUs, or host memory that stands in for it.
enum class DeviceBackend { memory, cuda };

// How the disk tier's I/O reaches the kernel.
enum class DiskIo { uring, sqpoll, threads };

struct Config {
  std::filesystem::path socket = "/run/kvtier/kvtierd.sock";
  std::uint32_t socket_mode = 0660;
  std::chrono::milliseconds lease_time{30'000};
  std::chrono::milliseconds shutdown_timeout{10'000};
  std::string log_level = "info";

  std::uint32_t index_blocks_max = 1U << 20;
  std::uint32_t pinned_percent_max = 25;  // of each tier, for `kvtierctl pin`

  struct Memory {
    std::uint64_t capacity_bytes = 0;
    std::uint64_t extent_bytes = 0;
    bool huge_pages = true;
    bool prefault = false;
  };
  Memory host{4ULL << 30, 1ULL << 30, true, false};
  struct Device : Memory {  // the capacity is of each GPU; 0: no device tier
    DeviceBackend backend = DeviceBackend::memory;
    std::vector<std::uint32_t> gpus{0};  // as the driver counts
  };
  Device device{{0, 256ULL << 20, true, false}};

  struct Disk {
    std::vector<std::filesystem::path> directories;  // none: no disk tier
    std::uint64_t capacity_bytes = 16ULL << 30;      // of each
    std::uint64_t segment_bytes = 256ULL << 20;
    Admission admission = Admission::all;
    std::uint32_t scrub_mib_per_s = 16;
    DiskIo io = DiskIo::uring;
  };
  Disk disk;
};

// Errors: io (cannot read the file), invalid (file:line:column, what is wrong and the mend).
Result<Config> load_config(const std::filesystem::path& file);
Result<Config> parse_config(const std::string& text, const std::string& name);

// As a TOML file with every key; parse_config() of it gives `config` back.
std::string to_toml(const Config& config);

}  // namespace kvtier::daemon
