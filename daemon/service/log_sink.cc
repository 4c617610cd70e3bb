#include "daemon/service/log_sink.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/details/log_msg.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <climits>

namespace kvtier::daemon {

// A file has no reader to wait for. Others share the description behind the descriptor (a shell,
// an earlier program), so that it must not be made non-blocking itself.
LogSink::LogSink(int fd) : fd_(fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || S_ISREG(status.st_mode)) return;
  kind_ = S_ISSOCK(status.st_mode) ? Kind::socket : Kind::other;
  if (kind_ == Kind::socket) return;
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  own_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

void LogSink::sink_it_(const spdlog::details::log_msg& message) {
  flush_();
  spdlog::memory_buf_t line;
  formatter_->format(message, line);
  const std::string_view text(line.data(), line.size());
  const std::size_t written = kept_.empty() ? write_some(text) : 0;
  if (written == text.size()) return;
  // What has begun is always ended.
  if (written > 0 || kept_.size() + text.size() <= kBytesKeptMax) {
    kept_ += text.substr(written);
  } else {
    ++left_out_;
  }
}

void LogSink::flush_() {
  if (!kept_.empty()) kept_.erase(0, write_some(kept_));
  if (!kept_.empty() || left_out_ == 0) return;
  kept_ = "[kvtierd] " + std::to_string(left_out_) +
          " lines of the log were left out here: nobody read them\n";
  left_out_ = 0;
  kept_.erase(0, write_some(kept_));
}

std::size_t LogSink::write_some(std::string_view text) const noexcept {
  std::size_t done = 0;
  while (done < text.size()) {
    const char* const from = text.data() + done;
    std::size_t most = text.size() - done;
    ssize_t now = -1;
    if (kind_ == Kind::socket) {
      now = ::send(fd_, from, most, MSG_DONTWAIT | MSG_NOSIGNAL);
    } else if (own_ || kind_ == Kind::file) {
      now = ::write(own_ ? own_.get() : fd_, from, most);
    } else {
      // Not ours to open: as much as fits where there is room, which others could only take at the
      // same moment.
      pollfd writable{fd_, POLLOUT, 0};
      most = std::min<std::size_t>(most, PIPE_BUF);
      if (::poll(&writable, 1, 0) == 1 && (writable.revents & POLLOUT) != 0)
        now = ::write(fd_, from, most);
      else
        errno = EAGAIN;
    }
    if (now < 0 && errno == EINTR) continue;
    if (now < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return text.size();  // nobody is there
    if (now <= 0) break;
    done += static_cast<std::size_t>(now);
  }
  return done;
}

}  // namespace kvtier::daemon
