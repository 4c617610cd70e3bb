#include "daemon/ops/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace kvtier::daemon::ops {
namespace {

std::string contents(const char* file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Field `number` of /proc/self/stat as proc(5) counts, from 3 up. The name before it may hold
// anything.
std::uint64_t stat_field(const std::string& stat, int number) {
  std::istringstream rest(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  std::string word;
  for (int at = 3; at <= number && rest >> word; ++at) {
  }
  return rest ? std::strtoull(word.c_str(), nullptr, 10) : 0;
}

}  // namespace

ProcessStats process_stats() {
  ProcessStats stats;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  std::istringstream statm(contents("/proc/self/statm"));
  std::uint64_t size = 0, resident = 0, shared = 0;
  statm >> size >> resident >> shared;
  stats.virtual_bytes = size * page;
  stats.resident_bytes = resident * page;
  stats.resident_shared_bytes = shared * page;
  const std::string stat = contents("/proc/self/stat");
  stats.cpu_seconds = static_cast<double>(stat_field(stat, 14) + stat_field(stat, 15)) / ticks;
  stats.threads = stat_field(stat, 20);
  std::istringstream all(contents("/proc/stat"));
  for (std::string word; all >> word;) {
    if (std::uint64_t boot = 0; word == "btime" && all >> boot) {
      stats.start_time_seconds =
          static_cast<double>(boot) + static_cast<double>(stat_field(stat, 22)) / ticks;
    }
  }
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end;
       at.increment(error)) {
    ++stats.open_fds;
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) stats.max_fds = limit.rlim_cur;
  return stats;
}

}  // namespace kvtier::daemon::ops
