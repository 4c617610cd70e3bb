// A real redis-server as a child process, on a unix socket in a directory of its own. Where there
// is none, the test is skipped.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "core/base/check.h"
#include "kvtier/deadline.h"

namespace kvtier::e2e {

class RedisProcess {
 public:
  static bool is_there() { return std::system("redis-server --version >/dev/null 2>&1") == 0; }

  RedisProcess() {
    std::string name = std::filesystem::temp_directory_path() / "kvtier-redis-XXXXXX";
    KVTIER_CHECK(::mkdtemp(name.data()) != nullptr);
    directory_ = name;
    start();
  }
  ~RedisProcess() {
    stop(SIGKILL);
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  RedisProcess(const RedisProcess&) = delete;

  void start() {
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int null = ::open("/dev/null", O_RDWR);
      ::dup2(null, STDOUT_FILENO);
      ::dup2(null, STDERR_FILENO);
      ::execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", path().c_str(),
               "--save", "", "--appendonly", "no", "--dir", directory_.c_str(), nullptr);
      ::_exit(127);
    }
    const auto give_up = Clock::now() + std::chrono::seconds(30);
    while (!answers()) {
      KVTIER_CHECK(Clock::now() < give_up);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  // SIGSTOP and SIGCONT, too.
  void send(int signal) const { ::kill(pid_, signal); }
  void stop(int signal) {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGCONT);
    ::kill(pid_, signal);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
    std::filesystem::remove(path());
  }

  std::string path() const { return (directory_ / "redis.sock").string(); }
  // For [remote].
  std::string url() const { return "redis+unix://" + path(); }

 private:
  bool answers() const {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path().copy(address.sun_path, sizeof address.sun_path - 1);
    const bool connected =
        ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    ::close(fd);
    return connected;
  }

  std::filesystem::path directory_;
  pid_t pid_ = -1;
};

}  // namespace kvtier::e2e
