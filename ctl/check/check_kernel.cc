// Memory, and what the kernel allows.
#include <algorithm>
#include <cstring>
#include <sstream>

#include "core/terminal/units.h"
#include "ctl/check/check_system.h"

namespace kvtier::ctl {
namespace {

using State = Check::State;

std::string limits_file(const Setup& setup) {
  return "/proc/" + (setup.pid != 0 ? std::to_string(setup.pid) : std::string("self")) + "/limits";
}

std::string drop_in(const std::string& setting) {
  return "mkdir -p /etc/systemd/system/kvtierd.service.d && printf '[Service]\\n" + setting +
         "\\n' > /etc/systemd/system/kvtierd.service.d/limits.conf && systemctl daemon-reload && "
         "systemctl restart kvtierd";
}

std::uint64_t wanted_bytes(const Setup& setup) {
  return setup.host_bytes + setup.device_bytes;
}

// The soft limit of /proc/PID/limits; none: unlimited, or not known, which `known` says.
std::optional<std::uint64_t> soft_limit(const Host& host, const std::string& file,
                                        const std::string& label, bool& known) {
  const auto text = host.read(file);
  known = text && text->find(label) != std::string::npos;
  return host.number(file, label);
}

void check_memlock(Checks& out, const Host& host, const Setup& setup) {
  bool known = false;
  const auto bytes = soft_limit(host, limits_file(setup), "Max locked memory", known);
  const std::string whose = setup.running ? "kvtierd's" : "this shell's";
  if (!known) {
    out.push_back(
        {State::warning, "memlock", "the limit cannot be read", "cat " + limits_file(setup)});
  } else if (!bytes) {
    out.push_back({State::ok, "memlock", whose + " limit is unlimited", ""});
  } else {
    const bool enough = *bytes >= wanted_bytes(setup);
    out.push_back({enough ? State::ok : State::warning, "memlock",
                   whose + " limit is " + human_bytes(*bytes) + ", the memory tiers are " +
                       human_bytes(wanted_bytes(setup)) +
                       (enough ? "" : ": memory beyond it is not registered for disk I/O"),
                   enough ? "" : drop_in("LimitMEMLOCK=infinity")});
  }
}

void check_open_files(Checks& out, const Host& host, const Setup& setup) {
  constexpr std::uint64_t kEnough = 4096;
  bool known = false;
  const auto files = soft_limit(host, limits_file(setup), "Max open files", known);
  if (!known || !files || *files >= kEnough) {
    out.push_back({State::ok, "open files",
                   files ? "at most " + std::to_string(*files) : "unlimited, or not known", ""});
  } else {
    out.push_back({State::warning, "open files",
                   "at most " + std::to_string(*files) +
                       ": clients and extents of memory need two each, and RocksDB some",
                   drop_in("LimitNOFILE=65536")});
  }
}

void check_room(Checks& out, const Host& host, const Setup& setup) {
  const auto total = host.number("/proc/meminfo", "MemTotal:");
  const auto available = host.number("/proc/meminfo", "MemAvailable:");
  if (!total || !available) {
    out.push_back({State::warning, "memory", "/proc/meminfo cannot be read", "cat /proc/meminfo"});
    return;
  }
  const std::uint64_t taken = setup.host_taken + setup.device_taken;
  const std::uint64_t wanted = wanted_bytes(setup);
  const std::uint64_t to_come = wanted - std::min(taken, wanted);
  const std::string seen = human_bytes(*available << 10) + " of " + human_bytes(*total << 10) +
                           " are available; the memory tiers may take " + human_bytes(to_come) +
                           " more (" + human_bytes(wanted) + " in all)";
  const std::string mend = "set [host] capacity in kvtierd.toml to at most " +
                           std::to_string(((*available << 10) + taken) / 10 * 7 >> 20) + "MiB";
  const bool possible = wanted <= *total << 10;
  const bool enough = to_come <= *available << 10;
  out.push_back({!possible ? State::failed
                 : enough  ? State::ok
                           : State::warning,
                 "memory", seen, possible && enough ? "" : mend});
}

// A control group's own bound, which the host's free memory says nothing of.
void check_cgroup(Checks& out, const Host& host, const Setup& setup) {
  if (setup.pid == 0) return;
  const auto groups = host.read("/proc/" + std::to_string(setup.pid) + "/cgroup");
  const std::size_t at = groups ? groups->find("0::") : std::string::npos;
  if (at == std::string::npos) return;
  const std::string path = groups->substr(at + 3, groups->find('\n', at) - at - 3);
  const auto most = host.number("/sys/fs/cgroup" + path + "/memory.max");
  if (!most || *most >= wanted_bytes(setup)) return;
  out.push_back({State::failed, "control group",
                 path + " may hold " + human_bytes(*most) + ", the memory tiers " +
                     human_bytes(wanted_bytes(setup)),
                 drop_in("MemoryMax=infinity")});
}

std::string chosen(const std::string& text) {
  const std::size_t open = text.find('[');
  const std::size_t close = text.find(']', open);
  return open == std::string::npos ? text : text.substr(open + 1, close - open - 1);
}

void check_huge_pages(Checks& out, const Host& host) {
  const std::string directory = "/sys/kernel/mm/transparent_hugepage";
  const auto enabled = host.read(directory + "/enabled");
  const std::string state = enabled ? chosen(*enabled) : "";
  if (!enabled || state == "never") {
    out.push_back(
        {State::warning, "transparent huge pages",
         enabled ? "never: lookups walk page tables, and start-up is slower"
                 : "this kernel has none",
         enabled ? "echo madvise > " + directory + "/enabled" : "boot a kernel that has them"});
  } else {
    out.push_back({State::ok, "transparent huge pages", state, ""});
  }
  // The memory of the host tier is shared memory. Where advice is not followed its huge pages are
  // collapsed, a quarter of a GiB a second on some hosts, and a tier that grows faster has small
  // ones.
  const auto shared = host.read(directory + "/shmem_enabled");
  const std::string advice = shared ? chosen(*shared) : "";
  if (shared && (advice == "never" || advice == "deny")) {
    out.push_back({State::warning, "huge pages of shared memory",
                   advice +
                       ": where the host tier grows fast it has small pages, and disks serve it "
                       "at half their rate",
                   "echo advise > " + directory + "/shmem_enabled"});
  } else if (shared) {
    out.push_back({State::ok, "huge pages of shared memory", advice, ""});
  }
  const auto reserved = host.number("/proc/sys/vm/nr_hugepages");
  const auto kilobytes = host.number("/proc/meminfo", "Hugepagesize:");
  if (!reserved || !kilobytes) return;
  // kvtierd takes none of them: what is reserved is memory it cannot have.
  const std::uint64_t bytes = *reserved * *kilobytes << 10;
  const bool many = bytes > 1ULL << 30;
  out.push_back(
      {many ? State::warning : State::ok, "explicit huge pages",
       human_bytes(bytes) + " are reserved" + (many ? ", which kvtierd does not use" : ""),
       many ? "sysctl -w vm.nr_hugepages=0    (unless something else needs them)" : ""});
}

void check_io_uring(Checks& out, const Host& host) {
  const auto disabled = host.number("/proc/sys/kernel/io_uring_disabled");
  const int error = host.io_uring_error();
  if (error == 0) {
    out.push_back({State::ok, "io_uring", "allowed", ""});
  } else if (disabled.value_or(0) != 0) {
    out.push_back({State::warning, "io_uring",
                   "kernel.io_uring_disabled is " + std::to_string(*disabled) +
                       ": the disk tier falls back to threads",
                   "sysctl -w kernel.io_uring_disabled=0"});
  } else {
    out.push_back({State::warning, "io_uring",
                   std::string(std::strerror(error)) +
                       (error == ENOSYS ? ": this kernel has none"
                                        : ": a seccomp filter forbids it, as containers' do") +
                       "; the disk tier falls back to threads",
                   error == ENOSYS
                       ? "boot a kernel with CONFIG_IO_URING"
                       : "allow io_uring_setup, io_uring_enter and io_uring_register "
                         "in the filter, e.g. docker run --security-opt seccomp=unconfined"});
  }
}

void check_memfd(Checks& out, const Host& host) {
  const int error = host.memfd_error();
  if (error == 0) {
    out.push_back({State::ok, "memfd", "shared memory can be made", ""});
    return;
  }
  const auto noexec = host.number("/proc/sys/vm/memfd_noexec").value_or(0);
  out.push_back({State::failed, "memfd",
                 "memfd_create: " + std::string(std::strerror(error)) +
                     (noexec > 1 ? ", as vm.memfd_noexec is " + std::to_string(noexec) : ""),
                 noexec > 1 ? "sysctl -w vm.memfd_noexec=1"
                            : "allow memfd_create in the seccomp filter that this runs under"});
}

void check_clock(Checks& out, const Host& host) {
  const std::string directory = "/sys/devices/system/clocksource/clocksource0";
  auto source = host.read(directory + "/current_clocksource");
  if (!source) return;
  source->erase(source->find_last_not_of(" \n") + 1);
  const bool slow = *source == "hpet" || *source == "acpi_pm" || *source == "jiffies";
  const auto others = host.read(directory + "/available_clocksource").value_or("");
  const bool tsc = others.find("tsc") != std::string::npos;
  out.push_back({slow ? State::warning : State::ok, "clock",
                 *source + (slow ? ": each look at the time is a slow read of a device" : ""),
                 !slow ? ""
                 : tsc ? "echo tsc > " + directory + "/current_clocksource"
                       : "boot with tsc=reliable, if the processor's clock is"});
}

void check_swap(Checks& out, const Host& host) {
  const auto swaps = host.read("/proc/swaps");
  if (!swaps) return;
  std::istringstream lines(*swaps);
  std::string line;
  std::getline(lines, line);  // the titles
  std::string used;
  while (std::getline(lines, line))
    used += (used.empty() ? "" : ", ") + line.substr(0, line.find_first_of(" \t"));
  out.push_back(
      {used.empty() ? State::ok : State::warning, "swap",
       used.empty() ? "none" : used + ": cached memory may be swapped out, and read back slowly",
       used.empty() ? "" : drop_in("MemorySwapMax=0")});
}

}  // namespace

void check_memory(Checks& out, const Host& host, const Setup& setup) {
  check_room(out, host, setup);
  check_cgroup(out, host, setup);
  check_memlock(out, host, setup);
  check_huge_pages(out, host);
  check_swap(out, host);
}

void check_kernel(Checks& out, const Host& host, const Setup& setup) {
  check_io_uring(out, host);
  check_memfd(out, host);
  check_open_files(out, host, setup);
  check_clock(out, host);
}

}  // namespace kvtier::ctl
