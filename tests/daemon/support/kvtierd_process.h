// A real kvtierd as a child process, in a directory of its own.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "tests/daemon/support/service_manager.h"

namespace kvtier::daemon::testing {

// Whether `condition` comes to hold; looked at every few milliseconds for at most 20 seconds.
bool comes_to_hold(const std::function<bool()>& condition);

class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

class Kvtierd {
 public:
  // With `config` (TOML) in a file of `scratch`. Does not wait for anything. A manager, where there
  // is one, outlives it. `in_child` runs just before the program does.
  Kvtierd(const Scratch& scratch, const std::string& config, const std::string& argument = "",
          ServiceManager* manager = nullptr, const std::function<void()>& in_child = {});
  ~Kvtierd();
  Kvtierd(const Kvtierd&) = delete;

  pid_t pid() const noexcept { return pid_; }
  void signal(int number);
  // The exit status as waitpid() gives it; of a daemon that is ending. -1 if it does not end in
  // time.
  int wait();
  bool running();
  // The file it was given with --config.
  const std::filesystem::path& config_file() const noexcept { return config_file_; }
  // What it wrote to stdout and stderr.
  std::string output() const;

 private:
  std::filesystem::path config_file_, output_;
  pid_t pid_ = -1;
  int status_ = -1;
};

}  // namespace kvtier::daemon::testing
