// Who is at the other end of a connection, as the kernel says: what it was when it connected.
#pragma once

#include <sys/types.h>

#include <vector>

#include "kvtier/result.h"

namespace kvtier::daemon {

struct Peer {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // supplementary ones

  bool in_group(gid_t group) const noexcept;
};

// Of a connected unix socket. Errors: io (the kernel does not say).
Result<Peer> peer_of(int socket);

}  // namespace kvtier::daemon
