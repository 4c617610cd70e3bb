// What each message asks for: the one table to extend with a new message.
#pragma once

#include <cstdint>

#include "client/wire/kvtier.capnp.h"

namespace kvtier::daemon {

enum class Right : std::uint8_t {
  none,   // not something a client may send
  read,   // every session
  write,  // sessions that are not read-only
  admin,  // the daemon's own user, root, and members of admin_group
};

struct MessageRule {
  Right right = Right::none;
  // What handling one takes of a session's requests per second; its bytes count besides.
  std::uint32_t cost = 1;
  bool answered =
      true;  // a refusal is an answer; one of a message without an answer ends the session
};

MessageRule rule_of(wire::Message::Which message) noexcept;

// As it stands in errors: "drop", "setQuota".
const char* name_of(wire::Message::Which message) noexcept;

}  // namespace kvtier::daemon
