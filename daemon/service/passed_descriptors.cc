#include "daemon/service/passed_descriptors.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace kvtier::daemon {

Result<std::vector<PassedDescriptor>> take_passed_descriptors() {
  char** names = nullptr;
  const int count = ::sd_listen_fds_with_names(1, &names);
  std::vector<PassedDescriptor> passed;
  if (count < 0) {
    return make_error(Errc::invalid, std::string("LISTEN_FDS is not understood: ") +
                                         std::strerror(-count) +
                                         "; it is set by the service manager alone");
  }
  for (int i = 0; i < count; ++i) {
    const std::string name = names != nullptr && names[i] != nullptr ? names[i] : "";
    passed.push_back({name, UniqueFd(SD_LISTEN_FDS_START + i)});
    if (names != nullptr) std::free(names[i]);
  }
  std::free(static_cast<void*>(names));
  return passed;
}

Result<std::optional<UniqueFd>> take_listening_socket(std::vector<PassedDescriptor>& passed) {
  std::optional<UniqueFd> found;
  for (auto at = passed.begin(); at != passed.end();) {
    if (::sd_is_socket(at->fd.get(), AF_UNIX, SOCK_STREAM, 1) <= 0) {
      ++at;
      continue;
    }
    if (found) {
      return make_error(Errc::invalid,
                        "the service manager passes several listening sockets: leave one "
                        "ListenStream= in kvtierd.socket");
    }
    found = std::move(at->fd);
    at = passed.erase(at);
  }
  return found;
}

std::string path_of_socket(int fd) {
  sockaddr_un address{};
  socklen_t length = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      length <= offsetof(sockaddr_un, sun_path) || address.sun_path[0] == '\0') {
    return {};
  }
  return {address.sun_path, ::strnlen(address.sun_path, length - offsetof(sockaddr_un, sun_path))};
}

}  // namespace kvtier::daemon
