#include "tests/protocol/raw_connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstring>

namespace kvtier::protocol {

std::optional<RawConnection> RawConnection::open(const std::string& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket.size() >= sizeof address.sun_path) return std::nullopt;
  std::memcpy(address.sun_path, socket.c_str(), socket.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return std::nullopt;
  return RawConnection(std::move(fd));
}

bool RawConnection::send(std::span<const std::byte> bytes, std::span<const int> descriptors,
                         int patience_ms) {
  constexpr std::size_t kDescriptorsMax = 253;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kDescriptorsMax)] = {};
  descriptors = descriptors.first(std::min(descriptors.size(), kDescriptorsMax));
  while (!bytes.empty()) {
    iovec from{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &from;
    message.msg_iovlen = 1;
    if (!descriptors.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(descriptors.size_bytes());
      std::memcpy(CMSG_DATA(c), descriptors.data(), descriptors.size_bytes());
    }
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      descriptors = {};
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    // The kernel takes no more descriptors in flight.
    if (errno == ETOOMANYREFS && !descriptors.empty()) {
      descriptors = {};
      continue;
    }
    pollfd writable{socket_.get(), POLLOUT, 0};
    if (errno != EAGAIN || ::poll(&writable, 1, patience_ms) != 1) return false;
  }
  return true;
}

RawConnection::Came RawConnection::receive(std::vector<wire::Frame>& frames, int wait_ms) {
  pollfd readable{socket_.get(), POLLIN, 0};
  if (::poll(&readable, 1, wait_ms) != 1) return Came::nothing;
  const auto received = reader_.receive(socket_.get(), frames);
  if (!frames.empty()) return Came::frames;
  return received ? Came::nothing : Came::end;
}

void RawConnection::finish_sending() {
  ::shutdown(socket_.get(), SHUT_WR);
}

}  // namespace kvtier::protocol
