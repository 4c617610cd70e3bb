#include "daemon/server/listener.h"

#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

namespace kvtier::daemon {

namespace asio = boost::asio;
using asio::local::stream_protocol;

namespace {

constexpr std::chrono::seconds kNextAttempt{1};
constexpr int kBacklog = 128;

// The path that a unix socket is bound to; empty where it has none.
std::string path_of_socket(int fd) {
  sockaddr_un address{};
  socklen_t length = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      length <= offsetof(sockaddr_un, sun_path) || address.sun_path[0] == '\0') {
    return {};
  }
  return {address.sun_path, ::strnlen(address.sun_path, length - offsetof(sockaddr_un, sun_path))};
}

}  // namespace

Result<void> Listener::open(const std::string& path, mode_t mode) {
  if (path.size() >= sizeof(sockaddr_un{}.sun_path)) {
    return make_error(Errc::invalid, "socket path " + path + " is too long: give one of at most " +
                                         std::to_string(sizeof(sockaddr_un{}.sun_path) - 1) +
                                         " bytes");
  }
  boost::system::error_code error;
  stream_protocol::socket probe(acceptor_.get_executor());
  probe.connect(stream_protocol::endpoint(path), error);
  if (!error) {
    return make_error(Errc::refused, "socket " + path +
                                         " is in use: another kvtierd serves there; "
                                         "stop it or set another `socket`");
  }
  // A socket that nobody listens on is left over from a daemon that was killed; anything else is
  // not ours.
  struct stat found;
  if (::lstat(path.c_str(), &found) == 0) {
    if (!S_ISSOCK(found.st_mode)) {
      return make_error(Errc::refused, path +
                                           " exists and is not a socket: move it away or set "
                                           "another `socket`");
    }
    ::unlink(path.c_str());
  }
  path_ = path;
  made_ = true;
  acceptor_.open(stream_protocol(), error);
  if (!error) acceptor_.bind(stream_protocol::endpoint(path), error);
  if (!error && ::chmod(path.c_str(), mode) != 0) error = {errno, boost::system::system_category()};
  if (!error) acceptor_.listen(kBacklog, error);
  if (error) {
    return make_error(Errc::io, "cannot listen on " + path + ": " + error.message() +
                                    "; the directory must exist and be writable");
  }
  return {};
}

Result<void> Listener::adopt(UniqueFd listening, const std::string& configured) {
  path_ = path_of_socket(listening.get());
  if (path_ != configured) {
    spdlog::warn("the service manager's socket is {}: `socket` = {} is not used", path_,
                 configured);
  }
  boost::system::error_code error;
  acceptor_.assign(stream_protocol(), listening.get(), error);
  if (error) {
    return make_error(Errc::io,
                      "the service manager's socket cannot be served: " + error.message());
  }
  (void)listening.release();
  return {};
}

void Listener::accept() {
  acceptor_.async_accept([this](boost::system::error_code error, Socket socket) {
    if (closed_ || error == asio::error::operation_aborted) return;
    if (error) {
      // No descriptor left, most likely, and the connection still waits: at once would be again and
      // again.
      spdlog::warn("accept: {}; tried again in a second", error.message());
      return accept_later();
    }
    if (admit_(std::move(socket))) return accept();
    accept_later();
  });
}

void Listener::accept_later() {
  timer_.expires_after(kNextAttempt);
  timer_.async_wait([this](boost::system::error_code cancelled) {
    if (!cancelled && !closed_) accept();
  });
}

void Listener::close() {
  closed_ = true;
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  timer_.cancel();
  if (made_) ::unlink(path_.c_str());
}

}  // namespace kvtier::daemon
