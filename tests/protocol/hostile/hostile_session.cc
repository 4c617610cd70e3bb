#include "tests/protocol/hostile/hostile_session.h"

#include <capnp/serialize.h>

namespace kvtier::protocol {

HostileSession::HostileSession(const Who& who, const Universe& universe, Tally& tally,
                               Random& random)
    : who_(who),
      universe_(universe),
      tally_(tally),
      random_(random),
      sender_(tally, random),
      has_(who, universe, tally, random),
      answers_(who, universe, tally, has_),
      client_(random.next()) {}

void HostileSession::leave() {
  sender_.close();
  has_.clear();
  answers_.clear();
  silent_ = 0;
}

void HostileSession::take(int wait_ms) {
  if (!connected()) return;
  std::vector<wire::Frame> frames;
  const auto came = sender_.receive(frames, wait_ms);
  // What is not answered for so long is not waited for any more.
  constexpr std::uint32_t kSilentMax = 3;
  silent_ = came == RawConnection::Came::nothing && wait_ms > 0 ? silent_ + 1 : 0;
  if (silent_ > kSilentMax) answers_.clear();
  for (wire::Frame& frame : frames) answers_.take(frame);
  if (came != RawConnection::Came::end) return;
  ++tally_.ended;
  leave();
}

void HostileSession::ask(const Fill& fill, const Asked& asked) {
  if (random_.one_in(200)) {
    // An event's, one that waits for its answer already, or any. Nothing comes of the answer.
    const std::uint64_t odd[]{0, last_id_, ~0ULL, random_.next() | 1ULL << 63};
    const std::uint64_t id = random_.pick(odd);
    answers_.forget(id);
    return deliver(fill, id);
  }
  const std::uint64_t id = ++last_id_;
  answers_.expect(id, asked);
  deliver(fill, id);
}

void HostileSession::tell(const Fill& fill) {
  deliver(fill, random_.one_in(10) ? random_.next() : 0);
}

void HostileSession::deliver(const Fill& fill, std::uint64_t id) {
  if (!connected()) return;
  capnp::MallocMessageBuilder message;
  Builder root = message.initRoot<wire::Message>();
  root.setId(id);
  fill(root);
  const auto words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  tally_.sent_message(static_cast<std::uint16_t>(root.which()));
  const Manner manner = std::exchange(manner_, Manner::whole);
  if (Sender::garbles(manner)) has_.certain = false;
  sender_.send_as(manner, framed(std::as_bytes(std::span(bytes.begin(), bytes.size()))));
  if (!connected()) leave();
}

void HostileSession::send_raw(std::span<const std::byte> message, wire::Message::Which which) {
  tally_.sent_message(static_cast<std::uint16_t>(which));
  sender_.send(framed(message));
  if (!connected()) leave();
}

}  // namespace kvtier::protocol
