// Sends hints to the daemon. Nobody waits for an answer, for there is none.
//
// Owned by the session, on its thread. A daemon that does not take hints is sent none: they would
// end the session.
#pragma once

#include <span>

#include "client/session/thread/conversation.h"

namespace kvtier::session {

class Hints {
 public:
  explicit Hints(Conversation& conversation) : conversation_(conversation) {}

  // `features`: of the welcome.
  void begin(std::uint64_t features) noexcept { taken_ = (features & wire::kTakesHints) != 0; }
  // In as many messages as it takes. `first`: the number of the first key in its prefix.
  void send(std::uint32_t handle, std::uint32_t first, std::span<const Key> keys, const Hint& hint);

 private:
  void send_piece(std::uint32_t handle, std::uint32_t first, std::span<const Key> keys,
                  const Hint& hint);

  Conversation& conversation_;
  bool taken_ = false;
};

}  // namespace kvtier::session
