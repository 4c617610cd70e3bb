#include "daemon/control/process_watch.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>

#include "client/base/fd.h"

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

Result<ProcessId> ProcessWatch::watch(pid_t pid) {
  // The descriptor first: if the process ends in between, its start time cannot be read or the
  // descriptor tells.
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) return errno_error(Errc::io, "cannot watch process " + std::to_string(pid));
  const auto start_time = start_time_of(pid);
  if (!start_time) return start_time.error();
  const ProcessId process{static_cast<std::uint32_t>(pid), *start_time};
  const std::pair key{process.pid, process.start_time};
  if (watched_.contains(key)) return process;
  auto& descriptor =
      watched_.try_emplace(key, boost::asio::posix::stream_descriptor(control_, fd.release()))
          .first->second;
  descriptor.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                        [this, process, key](boost::system::error_code error) {
                          if (error) return;
                          watched_.erase(key);
                          ended_(process);
                        });
  return process;
}

}  // namespace kvtier::daemon
