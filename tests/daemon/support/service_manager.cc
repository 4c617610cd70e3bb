#include "tests/daemon/support/service_manager.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "core/base/check.h"

extern char** environ;

namespace kvtier {
namespace {

constexpr int kFirst = 3;     // of the passed descriptors
constexpr int kAside = 1000;  // where they wait for their numbers
constexpr std::size_t kPidDigits = 10;

bool is_same(int a, int b) {
  struct stat one {
  }, other{};
  return ::fstat(a, &one) == 0 && ::fstat(b, &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino && S_ISREG(one.st_mode);
}

sockaddr_un address_of(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  KVTIER_CHECK(path.string().size() < sizeof address.sun_path);
  std::memcpy(address.sun_path, path.c_str(), path.string().size());
  return address;
}

}  // namespace

ServiceManager::ServiceManager() {
  std::string name = (std::filesystem::temp_directory_path() / "manager-XXXXXX").string();
  KVTIER_CHECK(::mkdtemp(name.data()) != nullptr);
  directory_ = name;
  socket_ = UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = address_of(directory_ / "notify");
  KVTIER_CHECK(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) ==
               0);
  thread_ = std::thread([this] { run(); });
}

ServiceManager::~ServiceManager() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  settle();
  thread_.join();
  std::filesystem::remove_all(directory_);
}

pid_t ServiceManager::start(const std::vector<std::string>& arguments, int output) {
  // All that takes memory before the fork: this process has threads.
  std::string names;
  std::vector<UniqueFd> aside;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, descriptors] : store_) {
      for (const UniqueFd& fd : descriptors) {
        names += (aside.empty() ? "" : ":") + name;
        aside.emplace_back(::fcntl(fd.get(), F_DUPFD_CLOEXEC, kAside));
        KVTIER_CHECK(aside.back().get() >= kAside);
      }
    }
  }
  std::vector<std::string> variables{
      "NOTIFY_SOCKET=" + (directory_ / "notify").string(), "LISTEN_FDNAMES=" + names,
      "LISTEN_FDS=" + std::to_string(aside.size()), "LISTEN_PID=" + std::string(kPidDigits, '0')};
  if (aside.empty()) variables.resize(1);
  char* const pid_digits = variables.back().data() + variables.back().size() - kPidDigits;
  std::vector<char*> environment;
  for (char** variable = environ; *variable != nullptr; ++variable)
    environment.push_back(*variable);
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  std::vector<std::string> copies = arguments;
  std::vector<char*> argv;
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);

  const pid_t pid = ::fork();
  KVTIER_CHECK(pid >= 0);
  if (pid != 0) return pid;
  char digits[kPidDigits + 1] = {};
  char* digit = digits + kPidDigits;
  for (pid_t left = ::getpid(); left > 0; left /= 10) *--digit = static_cast<char>('0' + left % 10);
  if (!aside.empty())
    std::memcpy(pid_digits, digit, static_cast<std::size_t>(digits + sizeof digits - digit));
  if (output >= 0) {
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
  }
  for (std::size_t i = 0; i < aside.size(); ++i)
    ::dup2(aside[i].get(), kFirst + static_cast<int>(i));
  ::execve(argv[0], argv.data(), environment.data());
  ::_exit(127);
}

std::pair<std::uint64_t, std::chrono::milliseconds> ServiceManager::alive() {
  const std::lock_guard lock(mutex_);
  return {alive_, longest_};
}

void ServiceManager::run() {
  for (bool ended = false; !ended;) {
    char text[4096];
    alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))];
    iovec to{text, sizeof text};
    msghdr message{};
    message.msg_iov = &to;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t bytes = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    KVTIER_CHECK(bytes >= 0);
    std::vector<UniqueFd> descriptors;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      const auto* fds = reinterpret_cast<const int*>(CMSG_DATA(c));
      for (std::size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i)
        descriptors.emplace_back(fds[i]);
    }
    const std::lock_guard lock(mutex_);
    take({text, static_cast<std::size_t>(bytes)}, std::move(descriptors));
    ended = ended_;
  }
}

void ServiceManager::take(const std::string& message, std::vector<UniqueFd> descriptors) {
  std::map<std::string, std::string> fields;
  std::istringstream lines(message);
  for (std::string line; std::getline(lines, line);) {
    const auto equals = line.find('=');
    if (equals != std::string::npos) fields[line.substr(0, equals)] = line.substr(equals + 1);
  }
  if (fields.contains("SETTLE")) {
    ++settled_;
    passed_.notify_all();
  }
  if (fields.contains("WATCHDOG")) {
    const auto now = std::chrono::steady_clock::now();
    if (alive_++ > 0)
      longest_ =
          std::max(longest_, std::chrono::ceil<std::chrono::milliseconds>(now - last_alive_));
    last_alive_ = now;
  }
  const std::string name = fields.contains("FDNAME") ? fields["FDNAME"] : "stored";
  if (fields["FDSTOREREMOVE"] == "1") store_.erase(name);
  if (fields["FDSTORE"] != "1") return;
  std::size_t kept = 0;
  for (const auto& [other, fds] : store_) kept += fds.size();
  for (UniqueFd& fd : descriptors) {
    bool known = false;
    for (const auto& [other, fds] : store_) {
      for (const UniqueFd& before : fds) known = known || is_same(before.get(), fd.get());
    }
    if (!known && kept++ < most_) store_[name].push_back(std::move(fd));
  }
}

// Datagrams come in the order in which they were sent.
void ServiceManager::settle() {
  std::unique_lock lock(mutex_);
  const std::uint64_t before = settled_;
  lock.unlock();
  const UniqueFd from(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = address_of(directory_ / "notify");
  const std::string text = "SETTLE=1";
  KVTIER_CHECK(::sendto(from.get(), text.data(), text.size(), 0,
                        reinterpret_cast<const sockaddr*>(&address),
                        sizeof address) == static_cast<ssize_t>(text.size()));
  lock.lock();
  passed_.wait(lock, [&] { return settled_ > before; });
}

std::vector<std::string> ServiceManager::names(const std::string& prefix) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> found;
  for (const auto& [name, descriptors] : store_) {
    for (std::size_t i = 0; name.starts_with(prefix) && i < descriptors.size(); ++i)
      found.push_back(name);
  }
  return found;
}

bool ServiceManager::holds(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return store_.contains(name);
}

int ServiceManager::fd(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return store_.at(name).at(0).get();
}

void ServiceManager::put(const std::string& name, UniqueFd fd) {
  const std::lock_guard lock(mutex_);
  store_[name].push_back(std::move(fd));
}

void ServiceManager::remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  store_.erase(name);
}

void ServiceManager::set_most(std::size_t descriptors) {
  const std::lock_guard lock(mutex_);
  most_ = descriptors;
}

}  // namespace kvtier
