// The kvtierd of a round: a child in a folder of its own, with what sanitizers say of it.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvtier/result.h"
#include "tests/daemon/support/service_manager.h"
#include "tests/protocol/hostile/universe.h"

namespace kvtier::protocol {

class DaemonUnderTest {
 public:
  // `folder` is there, and other users may look into it.
  DaemonUnderTest(std::string program, std::filesystem::path folder, Setting setting);
  ~DaemonUnderTest();
  DaemonUnderTest(const DaemonUnderTest&) = delete;

  std::string socket() const { return (folder_ / "s").string(); }
  pid_t pid() const noexcept { return pid_; }
  // Waits until it listens. Errors: unavailable, with what it said.
  Result<void> start();
  // As a crash would; the next start() has its memory.
  void kill();
  void reload(const Reloadable& now);
  bool running();
  // Has it end by itself. Errors: unavailable (it had ended before, or ends otherwise than with 0).
  Result<void> stop();
  // Of the process, and of what sanitizers wrote.
  std::string last_words() const;
  std::vector<std::string> sanitizer_reports() const;
  // Takes the longest turns of the control thread, in milliseconds, as its metrics have them now.
  void note_turns();
  const std::map<std::string, double>& turns_ms() const noexcept { return turns_ms_; }
  Reloadable as_configured() const;

 private:
  void write_config(const Reloadable& now) const;
  bool listens() const;
  pid_t spawn() const;
  std::string how_it_ended() const;

  std::string program_;
  std::filesystem::path folder_;
  Setting setting_;
  std::uint16_t http_port_ = 0;
  std::unique_ptr<ServiceManager> manager_;  // where its memory is to outlive it
  pid_t pid_ = -1;
  int status_ = 0;
  std::map<std::string, double> turns_ms_;  // by the metric's name
};

}  // namespace kvtier::protocol
