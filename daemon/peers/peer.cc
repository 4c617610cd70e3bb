#include "daemon/peers/peer.h"

#include <sys/socket.h>

#include <algorithm>

#include "core/base/fd.h"

namespace kvtier::daemon {

namespace {

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

std::shared_ptr<const UniqueFd> process_of(int socket) {
  int fd = -1;
  socklen_t length = sizeof fd;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) != 0 || fd < 0) return nullptr;
  return std::make_shared<const UniqueFd>(fd);
}

}  // namespace

bool Peer::in_group(gid_t group) const noexcept {
  return gid == group || std::ranges::find(groups, group) != groups.end();
}

Result<Peer> peer_of(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    return errno_error(Errc::io, "SO_PEERCRED");
  Peer peer{credentials.pid, credentials.uid, credentials.gid, {}, process_of(socket)};
  // Asked with no room it says how much it needs.
  length = 0;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, nullptr, &length) == 0 || errno != ERANGE)
    return peer;
  peer.groups.resize(length / sizeof(gid_t));
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, peer.groups.data(), &length) != 0)
    return errno_error(Errc::io, "SO_PEERGROUPS");
  peer.groups.resize(length / sizeof(gid_t));
  return peer;
}

}  // namespace kvtier::daemon
