#include "core/wire/control_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>

namespace kvtier::session {

Result<UniqueFd> connect_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return make_error(Errc::invalid, "socket path '" + path + "' must have from 1 to " +
                                         std::to_string(sizeof address.sun_path - 1) + " bytes");
  }
  path.copy(address.sun_path, path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_error(Errc::unavailable, "cannot make a socket");
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int code = errno;
    const char* mend =
        code == EACCES ? "; is this user in the daemon's group?" : "; is kvtierd running?";
    Error error = errno_error(Errc::unavailable, "cannot connect to " + path, code);
    error.message += mend;
    return error;
  }
  return fd;
}

ControlSocket::ControlSocket(UniqueFd fd) : fd_(std::move(fd)), writer_(kUnsentBytesMax) {}

Error error_of(wire::Failure::Reader error) {
  const auto code = error.getCode();
  constexpr std::size_t kMessageBytesMax = 4096;
  const std::string message(error.getMessage().cStr(),
                            std::min<std::size_t>(error.getMessage().size(), kMessageBytesMax));
  const bool known =
      code >= static_cast<int>(Errc::unavailable) && code <= static_cast<int>(Errc::stale);
  return make_error(known ? static_cast<Errc>(code) : Errc::refused, message);
}

}  // namespace kvtier::session
