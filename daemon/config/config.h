// The configuration of kvtierd: a TOML file (systemd/kvtierd.toml explains every key). Every value
// has a default but the disk directories, without which there is no disk tier.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kvtier/result.h"
#include "kvtier/tier.h"

namespace kvtier::daemon {

// Which committed blocks are written to disk: all; those leased or committed again while they are
// in the host tier; none.
enum class Admission { all, second_hit, expected_reuse, none };

// Which blocks of the host tier are written to the remote tier: those that are leased or committed
// again while they are there; all that are committed; those alone that somebody asks for.
enum class RemoteAdmission { second_use, all, warm };

// Which of the blocks that nobody holds goes first for one that needs its slot: the one that was
// used longest ago; or the one of which the fewest hits a second are expected, by what was learnt
// of such blocks.
enum class EvictionPolicy { lru, hit_density };

// What the device tier is made of: memory of GPUs, or host memory that stands in for it.
enum class DeviceBackend { memory, cuda };

// How the disk tier's I/O reaches the kernel.
enum class DiskIo { uring, sqpoll, threads };

// How the host tier's capacity is given: bytes; a share of the machine's memory; or as suits what
// is available (service/host_memory.h).
enum class Sizing { fixed, share, automatic };

struct Config {
  std::filesystem::path socket = "/run/kvtier/kvtierd.sock";
  std::uint32_t socket_mode = 0660;
  std::chrono::milliseconds lease_time{30'000};
  std::chrono::milliseconds shutdown_timeout{10'000};
  std::string log_level = "info";

  std::uint32_t index_blocks_max = 1U << 20;
  EvictionPolicy policy = EvictionPolicy::hit_density;
  std::uint32_t pinned_percent_max = 25;  // of each tier, for `kvtierctl pin`

  struct Memory {
    std::uint64_t capacity_bytes = 0;
    std::uint64_t extent_bytes = 0;
    bool huge_pages = true;
    bool prefault = false;
    // But for `fixed`, resolve_capacity() sets capacity_bytes.
    Sizing sizing = Sizing::fixed;
    std::uint32_t share_percent = 0;
  };
  Memory host{4ULL << 30, 1ULL << 30, true, false, Sizing::automatic};
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
    std::uint64_t write_budget = 0;  // bytes a day, of all directories; 0: none
    std::uint32_t scrub_mib_per_s = 16;
    DiskIo io = DiskIo::uring;
  };
  Disk disk;

  struct Remote {
    std::string url;            // empty: no remote tier
    std::string password_file;  // these are empty where there is none
    std::string tls_ca_file, tls_cert_file, tls_key_file;
    std::string key_file;
    bool cluster = false;
    std::uint32_t connections = 4;
    std::uint64_t read_bytes_per_s = 0, write_bytes_per_s = 0;  // 0: no bound
    std::uint32_t expiry_s = 0;                                 // 0: none
    std::chrono::milliseconds lookup_timeout{5};
    std::chrono::milliseconds read_timeout{1000};
    std::uint32_t blocks_known_max = 1U << 18;
    RemoteAdmission admission = RemoteAdmission::second_use;
    std::vector<std::string> tenants;  // isolated ones whose blocks may be there
  };
  Remote remote;

  struct Http {
    std::string listen = "127.0.0.1:9470";  // empty: none
    std::vector<std::string> hosts;         // names, beside addresses, that it may be asked by
    std::chrono::milliseconds stall_after{5'000};
  };
  Http http;

  // How a block is named in events: by the last 8 bytes of its key, as a number, or by all 16.
  enum class BlockHashes { int64, bytes };
  // Of an engine with several ranks, whose blocks.
  enum class Ranks { first, all };
  struct Events {
    std::string endpoint, replay_endpoint;  // empty: none
    std::string topic = "kv-events";
    std::uint32_t ipc_mode = 0600;
    bool tokens = false;
    BlockHashes block_hashes = BlockHashes::int64;
    Ranks ranks = Ranks::first;
    std::vector<std::string> tenants;  // empty: what has no salt
    std::vector<std::string> models;   // without their revision; empty: all
    std::uint64_t queue_bytes = 16ULL << 20;
    std::uint64_t replay_bytes = 64ULL << 20;
    std::uint32_t subscriber_batches = 1000;
  };
  Events events;

  // Users and groups, by name or number (as text).
  struct Principals {
    std::vector<std::string> users, groups;
    friend bool operator==(const Principals&, const Principals&) = default;
  };
  struct Access {
    std::string admin_group;        // empty: only root and the daemon's own user
    Principals read_only;           // who never gets more
    bool read_only_device = false;  // even where device memory cannot be shared read-only
  };
  Access access;

  // What goes past one is refused or ended with a message that names it.
  struct Limits {
    std::uint32_t sessions_max = 256;
    std::uint32_t sessions_per_user = 128;
    std::uint32_t leases_per_session = 4096;
    std::uint32_t leases_per_user = 32'768;
    std::uint32_t leased_percent = 75;            // of each memory tier, by one user
    std::uint32_t kept_percent = 10;              // likewise, by its hints
    std::uint32_t prefetched_percent = 25;        // of the host tier, on their way by its hints
    std::uint32_t requests_per_second = 100'000;  // of one user
    std::chrono::milliseconds hello_time{10'000};
    std::chrono::milliseconds frame_time{10'000};
    std::chrono::milliseconds unread_time{30'000};
  };
  Limits limits;

  // A size, or a part of a capacity.
  struct Amount {
    std::uint64_t value = 0;
    bool percent = false;
    std::uint64_t bytes_of(std::uint64_t capacity) const noexcept {
      return percent ? capacity / 100 * value + capacity % 100 * value / 100 : value;
    }
    friend bool operator==(const Amount&, const Amount&) = default;
  };
  struct Tenant {
    std::string name;
    std::vector<std::string> salts;
    Principals members;                                               // empty: everybody
    std::array<std::optional<Amount>, kTiers> quota{}, guaranteed{};  // by tier
    bool isolated = false;
    friend bool operator==(const Tenant&, const Tenant&) = default;
  };
  std::vector<Tenant> tenants;
};

// What a tenant's share is of: the device tier on each GPU, the host tier, all of the disk tier.
std::uint64_t capacity_of(const Config& config, Tier tier) noexcept;

// Errors: io (cannot read the file), invalid (file:line:column, what is wrong and the mend).
Result<Config> load_config(const std::filesystem::path& file);
Result<Config> parse_config(const std::string& text, const std::string& name);

// A key whose values differ, each as it would stand in the file. The key is section.name.
struct ConfigChange {
  std::string key, from, to;
};
std::vector<ConfigChange> changes_between(const Config& from, const Config& to);

// As a TOML file with every key; parse_config() of it gives `config` back.
std::string to_toml(const Config& config);

}  // namespace kvtier::daemon
