#include "daemon/service/service_manager.h"

#include <spdlog/spdlog.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include <cstdint>
#include <cstring>

namespace kvtier::daemon {
namespace {

void notify(const std::string& state) {
  if (const int sent = ::sd_notify(0, state.c_str()); sent < 0) {
    spdlog::warn("the service manager cannot be told \"{}\": {}", state.substr(0, state.find('\n')),
                 std::strerror(-sent));
  }
}

// One line of the protocol: whatever the text is, it can end no line and begin another.
std::string status_line(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return "STATUS=" + text;
}

std::string extension(std::chrono::seconds patience) {
  return "EXTEND_TIMEOUT_USEC=" + std::to_string(std::chrono::microseconds(patience).count());
}

std::string monotonic_line() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const auto usec = static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 +
                    static_cast<std::uint64_t>(now.tv_nsec) / 1000;
  return "MONOTONIC_USEC=" + std::to_string(usec);
}

}  // namespace

void ServiceManager::status(const std::string& text) const {
  notify(status_line(text));
}

void ServiceManager::progress(const std::string& text, std::chrono::seconds patience) const {
  notify(status_line(text) + "\n" + extension(patience));
}

void ServiceManager::ready(const std::string& text) const {
  notify("READY=1\n" + status_line(text));
}

void ServiceManager::reloading() const {
  notify("RELOADING=1\n" + monotonic_line() + "\n" + status_line("Reading the configuration"));
}

void ServiceManager::stopping(const std::string& text, std::chrono::seconds patience) const {
  notify("STOPPING=1\n" + status_line(text) + "\n" + extension(patience));
}

void ServiceManager::alive() const {
  notify("WATCHDOG=1");
}

std::chrono::microseconds ServiceManager::watchdog_time() {
  std::uint64_t usec = 0;
  return ::sd_watchdog_enabled(0, &usec) > 0 ? std::chrono::microseconds(usec)
                                             : std::chrono::microseconds(0);
}

}  // namespace kvtier::daemon
