#include "daemon/control/peer.h"

#include <sys/socket.h>

#include <algorithm>

#include "client/base/fd.h"

namespace kvtier::daemon {

bool Peer::in_group(gid_t group) const noexcept {
  return gid == group || std::ranges::find(groups, group) != groups.end();
}

Result<Peer> peer_of(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    return errno_error(Errc::io, "SO_PEERCRED");
  Peer peer{credentials.pid, credentials.uid, credentials.gid, {}};
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
