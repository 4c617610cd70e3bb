// The descriptors that the service manager passed at the start (LISTEN_FDS): the listening socket
// of a socket unit, and whatever an earlier run of the daemon put into its descriptor store.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/base/fd.h"

namespace kvtier::daemon {

struct PassedDescriptor {
  std::string name;  // FDNAME= of the store; the socket unit's name for its socket
  UniqueFd fd;
};

// All of them, close-on-exec. The environment says nothing of them afterwards, so it is to be asked
// once, before any thread is made. Errors: invalid (LISTEN_FDS or LISTEN_FDNAMES is not understood;
// nothing was taken).
Result<std::vector<PassedDescriptor>> take_passed_descriptors();

// Takes the unix stream socket that listens out of `passed`; the others stay. None if there is
// none. Errors: invalid (several: only one can be served).
Result<std::optional<UniqueFd>> take_listening_socket(std::vector<PassedDescriptor>& passed);

// The path that a unix socket is bound to; empty where it has none.
std::string path_of_socket(int fd);

}  // namespace kvtier::daemon
