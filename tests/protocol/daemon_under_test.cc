#include "tests/protocol/daemon_under_test.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/base/check.h"
#include "tests/ops/http_client.h"
#include "tests/protocol/raw_connection.h"

namespace kvtier::protocol {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// A sanitizer makes a daemon slow, and a run has the machine busy.
constexpr seconds kPatience{90};

bool comes_to_hold(const std::function<bool()>& condition) {
  const auto until = steady_clock::now() + kPatience;
  while (!condition()) {
    if (steady_clock::now() > until) return false;
    ::poll(nullptr, 0, 5);
  }
  return true;
}

// Nobody else's when it is asked for.
std::uint16_t free_port() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  if (::bind(fd.get(), where, length) != 0 || ::getsockname(fd.get(), where, &length) != 0)
    return 0;
  return ntohs(address.sin_port);
}

std::string content_of(const std::filesystem::path& file, std::size_t bytes_max) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  const std::string all = text.str();
  return all.size() > bytes_max ? "..." + all.substr(all.size() - bytes_max) : all;
}

// The body of the answer, empty where none comes within seconds.
std::string http_get(std::uint16_t port, const std::string& path) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval patience{5, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) {
    return {};
  }
  std::string answer;
  char bytes[16384];
  for (ssize_t got; (got = ::recv(fd.get(), bytes, sizeof bytes, 0)) > 0;)
    answer.append(bytes, static_cast<std::size_t>(got));
  const auto body = answer.find("\r\n\r\n");
  return body == std::string::npos ? std::string() : answer.substr(body + 4);
}

void set_sanitizers(const std::filesystem::path& folder) {
  const std::string log = "log_path=" + (folder / "sanitizer").string();
  // A report ends the daemon in the first two, so its exit status shows it as well.
  ::setenv("ASAN_OPTIONS", (log + ":detect_stack_use_after_return=1").c_str(), 1);
  ::setenv("UBSAN_OPTIONS", (log + ":print_stacktrace=1:halt_on_error=1").c_str(), 1);
  ::setenv("TSAN_OPTIONS",
           (log + ":second_deadlock_stack=1:suppressions=" + KVTIER_TSAN_SUPPRESSIONS).c_str(), 1);
}

}  // namespace

DaemonUnderTest::DaemonUnderTest(std::string program, std::filesystem::path folder, Setting setting)
    : program_(std::move(program)),
      folder_(std::move(folder)),
      setting_(std::move(setting)),
      http_port_(free_port()) {
  for (std::uint32_t i = 0; i < setting_.disks; ++i)
    std::filesystem::create_directory(folder_ / ("disk" + std::to_string(i)));
  if (setting_.restarts) manager_ = std::make_unique<ServiceManager>();
  set_sanitizers(folder_);
  write_config(as_configured());
}

DaemonUnderTest::~DaemonUnderTest() {
  kill();
}

Reloadable DaemonUnderTest::as_configured() const {
  Reloadable now{};
  now.host_mib = setting_.host_mib;
  now.device_mib = setting_.device_mib;
  now.small_quota_mib = 2;
  now.scrub_mib_per_s = 16;
  now.admission = setting_.admission;
  return now;
}

void DaemonUnderTest::write_config(const Reloadable& now) const {
  const auto file = folder_ / "kvtierd.toml", fresh = folder_ / "kvtierd.toml.new";
  std::ofstream(fresh) << config_text(setting_, now, folder_.string(), http_port_);
  std::filesystem::rename(fresh, file);
}

pid_t DaemonUnderTest::spawn() const {
  const std::string config = (folder_ / "kvtierd.toml").string();
  const UniqueFd output(
      ::open((folder_ / "output").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  if (manager_) return manager_->start({program_, "--config", config}, output.get());
  const pid_t pid = ::fork();
  KVTIER_CHECK(pid >= 0);
  if (pid != 0) return pid;
  ::dup2(output.get(), STDOUT_FILENO);
  ::dup2(output.get(), STDERR_FILENO);
  if (setting_.descriptors_max != 0) {
    const rlimit most{setting_.descriptors_max, setting_.descriptors_max};
    ::setrlimit(RLIMIT_NOFILE, &most);
  }
  ::execl(program_.c_str(), "kvtierd", "--config", config.c_str(), nullptr);
  ::_exit(127);
}

bool DaemonUnderTest::listens() const {
  return RawConnection::open(socket()).has_value();
}

Result<void> DaemonUnderTest::start() {
  pid_ = spawn();
  const bool good = comes_to_hold([&] { return listens() || !running(); });
  if (good && running()) return {};
  return make_error(Errc::unavailable, "kvtierd does not start: " + last_words());
}

void DaemonUnderTest::kill() {
  if (!running()) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, &status_, 0);
  pid_ = -1;
  if (manager_) manager_->settle();
}

void DaemonUnderTest::reload(const Reloadable& now) {
  write_config(now);
  if (running()) ::kill(pid_, SIGHUP);
}

bool DaemonUnderTest::running() {
  if (pid_ > 0 && ::waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = -1;
  return pid_ > 0;
}

std::string DaemonUnderTest::how_it_ended() const {
  if (WIFSIGNALED(status_)) return "signal " + std::to_string(WTERMSIG(status_));
  return "status " + std::to_string(WEXITSTATUS(status_));
}

Result<void> DaemonUnderTest::stop() {
  if (!running()) return make_error(Errc::unavailable, "kvtierd has ended: " + last_words());
  ::kill(pid_, SIGTERM);
  if (!comes_to_hold([&] { return !running(); }))
    return make_error(Errc::unavailable, "kvtierd does not end: " + last_words());
  if (WIFEXITED(status_) && WEXITSTATUS(status_) == 0) return {};
  return make_error(Errc::unavailable, "kvtierd ended badly: " + last_words());
}

std::string DaemonUnderTest::last_words() const {
  constexpr std::size_t kBytes = 6000;
  const std::string how = pid_ > 0 ? "it runs" : how_it_ended();
  std::string output = content_of(folder_ / "output", 64 * kBytes);
  // A sanitizer that can open no file any more writes its report there.
  std::size_t report = std::min(output.find("runtime error:"), output.find("ERROR: "));
  if (report == std::string::npos) report = output.size() - std::min(output.size(), kBytes);
  return how + "\n" + output.substr(report, kBytes);
}

std::vector<std::string> DaemonUnderTest::sanitizer_reports() const {
  constexpr std::size_t kBytes = 200'000;
  std::vector<std::string> reports;
  for (const auto& file : std::filesystem::directory_iterator(folder_)) {
    if (file.path().filename().string().starts_with("sanitizer."))
      reports.push_back(content_of(file.path(), kBytes));
  }
  return reports;
}

// Only of the last 30 to 60 seconds, so it is to be asked for more often.
void DaemonUnderTest::note_turns() {
  const auto metrics = daemon::testing::parse_metrics(http_get(http_port_, "/metrics"));
  for (const auto& [name, seconds] : metrics) {
    if (name.find("control_turn") == std::string::npos || name.find("_max") == std::string::npos)
      continue;
    double& longest = turns_ms_[name.substr(0, name.find('{'))];
    longest = std::max(longest, seconds * 1000);
  }
}

}  // namespace kvtier::protocol
