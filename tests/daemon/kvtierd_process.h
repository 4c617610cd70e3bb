// A real kvtierd as a child process, in a directory of its own.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "tests/daemon/service_manager.h"

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
  // is one, outlives it.
  Kvtierd(const Scratch& scratch, const std::string& config, const std::string& argument = "",
          ServiceManager* manager = nullptr);
  ~Kvtierd();
  Kvtierd(const Kvtierd&) = delete;

  pid_t pid() const noexcept { return pid_; }
  void signal(int number);
  // The exit status as waitpid() gives it; of a daemon that is ending. -1 if it does not end in
  // time.
  int wait();
  bool running();
  // What it wrote to stdout and stderr.
  std::string output() const;

 private:
  std::filesystem::path output_;
  pid_t pid_ = -1;
  int status_ = -1;
};

}  // namespace kvtier::daemon::testing
