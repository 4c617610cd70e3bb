#include "tests/daemon/support/kvtierd_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "core/base/check.h"

namespace kvtier::daemon::testing {

namespace {

// The kvtierd that is shipped; where a test asks for a fault in it, the one that can have it.
const char* program() {
#ifdef KVTIER_DAEMON_WITH_FAULTS
  if (::getenv("KVTIER_KILL_AT") != nullptr || ::getenv("KVTIER_DISK_STANDS") != nullptr)
    return KVTIER_DAEMON_WITH_FAULTS;
#endif
  return KVTIER_DAEMON;
}

}  // namespace

bool comes_to_hold(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    ::poll(nullptr, 0, 2);
  }
  return true;
}

Scratch::Scratch() {
  std::string name = (std::filesystem::temp_directory_path() / "kvtierd-XXXXXX").string();
  KVTIER_CHECK(::mkdtemp(name.data()) != nullptr);
  path_ = name;
}

Scratch::~Scratch() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Kvtierd::Kvtierd(const Scratch& scratch, const std::string& config, const std::string& argument,
                 ServiceManager* manager, const std::function<void()>& in_child) {
  static int started = 0;
  const std::string number = std::to_string(started++);
  const std::string file = (scratch / ("config-" + number)).string();
  config_file_ = file;
  std::ofstream(file) << config;
  output_ = scratch / ("output-" + number);
  const std::string output = output_.string();
  if (manager != nullptr) {
    const UniqueFd out(::open(output.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
    std::vector<std::string> arguments{program(), "--config", file};
    if (!argument.empty()) arguments.push_back(argument);
    pid_ = manager->start(arguments, out.get());
    return;
  }
  pid_ = ::fork();
  KVTIER_CHECK(pid_ >= 0);
  if (pid_ != 0) return;
  const int out = ::open(output.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(out, STDERR_FILENO);
  if (in_child) in_child();
  ::execl(program(), "kvtierd", "--config", file.c_str(),
          argument.empty() ? nullptr : argument.c_str(), nullptr);
  ::_exit(127);
}

Kvtierd::~Kvtierd() {
  if (!running()) return;
  signal(SIGKILL);
  wait();
}

void Kvtierd::signal(int number) {
  ::kill(pid_, number);
}

bool Kvtierd::running() {
  if (pid_ > 0 && ::waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = -1;
  return pid_ > 0;
}

int Kvtierd::wait() {
  return comes_to_hold([&] { return !running(); }) ? status_ : -1;
}

std::string Kvtierd::output() const {
  std::ostringstream text;
  text << std::ifstream(output_).rdbuf();
  return text.str();
}

}  // namespace kvtier::daemon::testing
