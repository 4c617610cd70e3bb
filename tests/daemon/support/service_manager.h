// A service manager as small as can be, with a descriptor store: it starts a daemon with
// NOTIFY_SOCKET and with the descriptors that earlier ones have put into the store (LISTEN_FDS), as
// systemd does.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/fd.h"

namespace kvtier {

class ServiceManager {
 public:
  ServiceManager();
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;

  // Starts a program with what is stored. `output`: for its stdout and stderr; -1: those of this
  // process.
  pid_t start(const std::vector<std::string>& arguments, int output = -1);

  // Waits until everything that was sent by a process that has ended is done.
  void settle();
  // After settle():
  std::vector<std::string> names(const std::string& prefix = "");
  bool holds(const std::string& name);
  int fd(const std::string& name);  // stays the manager's
  void put(const std::string& name, UniqueFd fd);
  void remove(const std::string& name);
  // How many descriptors it keeps; more are dropped without a word.
  void set_most(std::size_t descriptors);
  // How often it was told that the daemon is alive, and the longest that it was not.
  std::pair<std::uint64_t, std::chrono::milliseconds> alive();

 private:
  void run();
  void take(const std::string& message, std::vector<UniqueFd> descriptors);

  std::filesystem::path directory_;
  UniqueFd socket_;
  std::mutex mutex_;
  std::condition_variable passed_;
  std::map<std::string, std::vector<UniqueFd>> store_;
  std::size_t most_ = 10'000;
  std::uint64_t alive_ = 0;
  std::chrono::steady_clock::time_point last_alive_{};
  std::chrono::milliseconds longest_{};
  std::uint64_t settled_ = 0;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace kvtier
