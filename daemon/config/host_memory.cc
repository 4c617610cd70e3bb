#include "daemon/config/host_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string>

#include "core/base/units.h"
#include "daemon/config/config_values.h"
#include "daemon/limits.h"

namespace kvtier::daemon {
namespace {

// The number in a control group's file; none where there is no limit ("max") or no such file.
std::optional<std::uint64_t> number_in(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string word;
  if (!(in >> word)) return std::nullopt;
  std::uint64_t number = 0;
  const auto parsed = std::from_chars(word.data(), word.data() + word.size(), number);
  if (parsed.ec != std::errc{} || parsed.ptr != word.data() + word.size()) return std::nullopt;
  return number;
}

// The control group of this process, relative to the hierarchy's root ("0::/a/b" of version 2).
std::filesystem::path own_group(const std::filesystem::path& root) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("0::/")) return line.substr(4);
  }
  return {};
}

// The limits of the group and of all above it hold.
void apply_group_limits(HostMemory& memory, const std::filesystem::path& root) {
  const auto top = root / "sys/fs/cgroup";
  for (auto group = own_group(root); !group.empty(); group = group.parent_path()) {
    for (const char* file : {"memory.max", "memory.high"}) {
      const auto limit = number_in(top / group / file);
      if (!limit) continue;
      const std::uint64_t used = number_in(top / group / "memory.current").value_or(0);
      memory.total_bytes = std::min(memory.total_bytes, *limit);
      memory.available_bytes = std::min(memory.available_bytes, *limit - std::min(*limit, used));
    }
  }
}

}  // namespace

Result<HostMemory> read_host_memory(const std::filesystem::path& root) {
  HostMemory memory;
  std::ifstream in(root / "proc/meminfo");
  std::string name, unit;
  for (std::uint64_t kib = 0; in >> name >> kib; std::getline(in, unit)) {
    if (name == "MemTotal:") memory.total_bytes = kib << 10;
    if (name == "MemAvailable:") memory.available_bytes = kib << 10;
  }
  if (memory.total_bytes == 0) {
    return make_error(Errc::io, "cannot read how much memory there is from " +
                                    (root / "proc/meminfo").string() +
                                    ": give [host] capacity in bytes");
  }
  apply_group_limits(memory, root);
  return memory;
}

void resolve_capacity(Config::Memory& host, const HostMemory& memory, std::uint64_t held_bytes) {
  const auto rounded = [](std::uint64_t bytes, std::uint64_t unit) {
    return std::max(bytes / unit * unit, limits::kHostFloorBytes);
  };
  if (host.sizing == Sizing::share) {
    host.capacity_bytes = rounded(memory.total_bytes / 100 * host.share_percent, 1_MiB);
  } else if (host.sizing == Sizing::automatic) {
    const std::uint64_t available =
        std::min(memory.total_bytes, memory.available_bytes + held_bytes);
    const std::uint64_t bytes = std::min(memory.total_bytes / 4, available / 2);
    host.capacity_bytes = rounded(bytes, bytes < host.extent_bytes ? 1_MiB : host.extent_bytes);
  }
}

Result<void> settle_host_capacity(Config& config, std::uint64_t held_bytes) {
  if (config.host.sizing == Sizing::fixed) return {};
  const auto memory = read_host_memory();
  if (!memory) return memory.error();
  resolve_capacity(config.host, *memory, held_bytes);
  return check_tenants(config);
}

}  // namespace kvtier::daemon
