// Who is at the other end of a connection, as the kernel says: what it was when it connected.
#pragma once

#include <sys/types.h>

#include <memory>
#include <vector>

#include "core/base/fd.h"
#include "kvtier/result.h"

namespace kvtier::daemon {

struct Peer {
  pid_t pid = 0;  // 0: its process is in a PID namespace that the daemon cannot see into
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // supplementary ones
  // Of its process, whatever its PID namespace; null where the kernel has none to give (before
  // Linux 6.5).
  std::shared_ptr<const UniqueFd> process{};

  bool in_group(gid_t group) const noexcept;
};

// Of a connected unix socket. Errors: io (the kernel does not say).
Result<Peer> peer_of(int socket);

}  // namespace kvtier::daemon
