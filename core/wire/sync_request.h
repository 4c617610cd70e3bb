// One request at a time to the daemon, waited for: for kvtierctl and for tests. One thread.
#pragma once

#include <deque>
#include <functional>

#include "core/wire/control_socket.h"
#include "kvtier/deadline.h"
#include "kvtier/result.h"

namespace kvtier::session {

class SyncSession {
 public:
  // Connects and exchanges versions. Errors: invalid, unavailable, deadline, version, malformed,
  // refused.
  static Result<SyncSession> connect(const std::string& socket, const std::string& name,
                                     Deadline deadline);

  // Sends what `fill` makes and calls `use` with the answer; events that come meanwhile are
  // skipped. Errors: what the daemon answered, or as connect().
  Result<void> request(const std::function<void(wire::Message::Builder)>& fill,
                       const std::function<void(wire::Message::Reader)>& use, Deadline deadline);

 private:
  Result<wire::Frame> next_frame(Deadline deadline);

  std::string path_;
  ControlSocket socket_;
  std::deque<wire::Frame> frames_;
  std::uint64_t last_id_ = 0;
};

}  // namespace kvtier::session
