// What each message asks for, and what it costs: the one table to extend with a new message.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/wire/kvtier.capnp.h"
#include "kvtier/result.h"

namespace kvtier::daemon {

enum class Right : std::uint8_t {
  none,   // not something a client may send
  read,   // every session
  write,  // sessions that are not read-only
  admin,  // the daemon's own user, root, and members of admin_group
};

struct MessageRule {
  Right right = Right::none;
  // What handling one takes of a user's requests per second, and what each element of its lists
  // does; its bytes count besides.
  double cost = 1;
  double each = 0;
  bool answered =
      true;  // a refusal is an answer; one of a message without an answer ends the session
};

MessageRule rule_of(wire::Message::Which message) noexcept;

// What handling this message takes. Looks at the sizes of its lists alone, so it is known before
// anything goes through one of them. `frame_bytes`: of the frame that it came in. Errors:
// malformed, where a list has more elements than such a message may have, or than that frame can
// hold: an element of no size takes no room in a frame and time in every loop.
Result<double> cost_of(wire::Message::Reader message, std::size_t frame_bytes);

// As it stands in errors: "drop", "setQuota".
const char* name_of(wire::Message::Which message) noexcept;

}  // namespace kvtier::daemon
