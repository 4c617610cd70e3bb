// Closing what a peer has sent: a descriptor's last close can take as long as whoever made it likes
// (a socket that lingers, a file of a file system that is a process). The kernel does it in the
// thread that lets go of the descriptor, or of a socket in which it still lies, so that is never
// the control thread: each closing has a thread of its own. Owned by the control thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "core/base/fd.h"

namespace kvtier::daemon {

class Closings {
 public:
  Closings();
  // Ends the connection; the peer sees it at once. The socket is closed, with these descriptors
  // that came by it, now or when that can be done without waiting.
  void close(uid_t user, UniqueFd socket, std::vector<UniqueFd> descriptors = {});
  // Under way. Who has many is better not let in: nothing else bounds them.
  std::size_t of_user(uid_t user) const;
  std::size_t under_way() const;

 private:
  void close_elsewhere(uid_t user, std::vector<UniqueFd> descriptors);
  struct State;
  std::shared_ptr<State> state_;  // outlives this: nobody waits for the threads
};

}  // namespace kvtier::daemon
