#include "tests/daemon/support/kill_at.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/base/points.h"

namespace kvtier::daemon::testing {
namespace {

// Written before the hook is set, read by it on any thread.
std::string point_name;
std::atomic<std::uint64_t> passings_left{0};

void kill_at_point(const char* name) noexcept {
  if (std::strcmp(name, point_name.c_str()) != 0) return;
  if (passings_left.fetch_sub(1, std::memory_order_relaxed) == 1) ::kill(::getpid(), SIGKILL);
}

}  // namespace

Result<void> arm_kill_from_environment() {
  const char* set = std::getenv("KVTIER_KILL_AT");
  if (set == nullptr || *set == '\0') return {};
  const std::string text = set;
  const auto colon = text.rfind(':');
  std::uint64_t count = 0;
  const char* end = text.data() + text.size();
  if (colon == std::string::npos || colon == 0 ||
      std::from_chars(text.data() + colon + 1, end, count).ptr != end || count == 0) {
    return make_error(Errc::invalid,
                      "KVTIER_KILL_AT=" + text + ": expected name:n, a point and a number from 1");
  }
  point_name = text.substr(0, colon);
  passings_left = count;
  point_hook.store(&kill_at_point, std::memory_order_release);
  return {};
}

}  // namespace kvtier::daemon::testing
