// What a request needs: the one place that says so.
#pragma once

#include "client/wire/frame.h"

namespace kvtier::daemon {

// Requests that look into other clients' blocks or do something to them are the administrator's.
// Everything else is any client's.
constexpr bool needs_admin(wire::Message::Which request) noexcept {
  switch (request) {
    case wire::Message::DROP:
    case wire::Message::SCRUB:
    case wire::Message::LIST:
    case wire::Message::INSPECT:
    case wire::Message::PIN:
    case wire::Message::UNPIN:
    case wire::Message::INVALIDATE:
    case wire::Message::SESSIONS:
    case wire::Message::QUOTAS:
    case wire::Message::SET_QUOTA:
      return true;
    default:
      return false;
  }
}

}  // namespace kvtier::daemon
