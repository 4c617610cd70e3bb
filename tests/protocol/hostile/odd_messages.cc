// What a hostile session says that no client would.
#include <capnp/serialize.h>

#include <cstring>

#include "tests/protocol/hostile/messages.h"

namespace kvtier::protocol::say {

void wrong_way(HostileSession& session) {
  Random& random = session.random();
  session.ask([&](HostileSession::Builder m) {
    switch (random.below(6U)) {
      case 0:
        return m.initWelcome().setVersion(1);
      case 1:
        return m.setOpened(random.below(4U));
      case 2:
        return m.initExtent().setId(random.below(16U));
      case 3:
        return m.setExtentGone(random.below(16U));
      case 4:
        return m.setNamespaceClosed(0);
      default:
        return m.initError().setMessage("no");
    }
  });
}

void hollow_list(HostileSession& session) {
  Random& random = session.random();
  if (!session.connected()) return;
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::Message>();
  // Each has a list for its first pointer.
  switch (random.below(4U)) {
    case 0:
      root.initReleasePartly(1);
      break;
    case 1:
      root.initRelease(1);
      break;
    case 2:
      root.initAbandon(1);
      break;
    default:
      root.initSessionsReply(1);
  }
  const auto words = capnp::messageToFlatArray(message);
  std::vector<std::uint64_t> copy(words.size());
  std::memcpy(copy.data(), words.begin(), words.size() * sizeof(std::uint64_t));
  // [segments][root][data][pointers]: the list's pointer, then where it points.
  const std::size_t pointer = 2 + (copy[1] >> 32 & 0xFFFF);
  const std::uint64_t count = random.one_in(2) ? (1U << 29) - 1 : random.below(1U << 22);
  if (pointer + 1 < copy.size()) {
    const bool structs = (copy[pointer] >> 32 & 7) == 7;
    copy[pointer] = structs ? (copy[pointer] & 0x7FFFFFFFFULL) : (count << 35 | 1);
    if (structs) copy[pointer + 1] = (count & 0x3FFFFFFF) << 2;
  }
  session.send_raw(std::as_bytes(std::span(copy)), root.which());
}

void flood(HostileSession& session) {
  Random& random = session.random();
  session.tally().did(Act::flood);
  static constexpr void (*kKinds[])(HostileSession&){status,   list,  lease, reserve,
                                                     sessions, hello, flush, inspect};
  const auto kind = random.pick(kKinds);
  for (std::uint32_t i = 20 + random.below(random.one_in(6) ? 3000U : 300U);
       i > 0 && session.connected(); --i) {
    kind(session);
  }
  // What takes more than one message to answer, when there may be no room for one.
  for (std::uint32_t i = random.below(6U); i > 0 && session.connected(); --i) {
    reserve(session);
    lease(session);
  }
}

}  // namespace kvtier::protocol::say
