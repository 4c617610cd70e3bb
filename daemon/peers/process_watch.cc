#include "daemon/peers/process_watch.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>

#include "core/base/fd.h"

namespace kvtier::daemon {

Result<std::uint64_t> start_time_of(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const UniqueFd stat(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!stat && errno != ENOENT) return errno_error(Errc::io, "cannot read " + path);
  std::string text(4096, '\0');
  const ssize_t length = stat ? ::read(stat.get(), text.data(), text.size()) : 0;
  text.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  // The second field is the command's name in parentheses and may hold anything.
  const std::size_t after_name = text.rfind(')');
  if (after_name == std::string::npos) {
    return make_error(Errc::io, "process " + std::to_string(pid) + " is not in /proc");
  }
  std::istringstream fields(text.substr(after_name + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  std::uint64_t start_time = 0;
  if (!(fields >> start_time)) return make_error(Errc::io, "/proc/PID/stat is not understood");
  return start_time;
}

namespace {

constexpr std::uint64_t kNoStartTime = 1ULL << 63;  // set in what stands in its place

// A number that no other process has while this host runs: since Linux 6.9 the kernel has one for
// each; before, one that is made up, with which the process's next connection has another.
std::uint64_t number_of_unseen(int pidfd) {
  constexpr auto kPidFs = 0x50494446;
  struct statfs kind {};
  struct stat status {};
  if (::fstatfs(pidfd, &kind) == 0 && kind.f_type == kPidFs && ::fstat(pidfd, &status) == 0)
    return status.st_ino | kNoStartTime;
  std::uint64_t random = 0;
  [[maybe_unused]] const auto got = ::getrandom(&random, sizeof random, 0);
  return random | kNoStartTime;
}

}  // namespace

void ProcessWatch::wait_for(ProcessId process, UniqueFd fd) {
  const std::pair key{process.pid, process.start_time};
  if (watched_.contains(key)) return;
  auto& descriptor =
      watched_.try_emplace(key, boost::asio::posix::stream_descriptor(control_, fd.release()))
          .first->second;
  descriptor.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                        [this, process, key](boost::system::error_code error) {
                          if (error) return;
                          watched_.erase(key);
                          ended_(process);
                        });
}

Result<ProcessId> ProcessWatch::watch(const Peer& peer) {
  if (peer.pid != 0) return watch(peer.pid);
  if (!peer.process) {
    return make_error(Errc::refused,
                      "its process is in a PID namespace that kvtierd cannot see into, so that "
                      "kvtierd would not learn of its end: run both in one, or on Linux 6.5 or "
                      "later");
  }
  auto fd = peer.process->duplicate();
  if (!fd) return fd.error();
  const ProcessId process{0, number_of_unseen(fd->get())};
  wait_for(process, std::move(*fd));
  return process;
}

Result<ProcessId> ProcessWatch::watch(pid_t pid) {
  // The descriptor first: if the process ends in between, its start time cannot be read or the
  // descriptor tells.
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) return errno_error(Errc::io, "cannot watch process " + std::to_string(pid));
  const auto start_time = start_time_of(pid);
  if (!start_time) return start_time.error();
  const ProcessId process{static_cast<std::uint32_t>(pid), *start_time};
  wait_for(process, std::move(fd));
  return process;
}

}  // namespace kvtier::daemon
