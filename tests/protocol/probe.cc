#include <poll.h>

#include <cstring>

#include "tests/protocol/bystanders.h"
#include "tests/protocol/hostile/universe.h"
#include "tests/protocol/raw_connection.h"

namespace kvtier::protocol {
namespace {

using Builder = wire::Message::Builder;

std::vector<std::byte> frame_of(const std::function<void(Builder)>& fill) {
  capnp::MallocMessageBuilder message;
  Builder root = message.initRoot<wire::Message>();
  root.setId(1);
  fill(root);
  const auto words = capnp::messageToFlatArray(message);
  const auto body = words.asBytes();
  const wire::FrameHeader header{wire::kFrameMagic, static_cast<std::uint32_t>(body.size()), 0, 0};
  std::vector<std::byte> frame(sizeof header + body.size());
  std::memcpy(frame.data(), &header, sizeof header);
  std::memcpy(frame.data() + sizeof header, body.begin(), body.size());
  return frame;
}

// Whether an answer with an id came before the connection ended, or the round.
bool answered(RawConnection& connection, Tally& tally, bool& ended) {
  constexpr int kWaitMs = 100;
  while (!tally.round_over) {
    std::vector<wire::Frame> frames;
    const auto came = connection.receive(frames, kWaitMs);
    bool answer = false;
    for (const auto& frame : frames)
      (void)frame.read([&](wire::Message::Reader m) { answer = answer || m.getId() == 1; });
    if (answer) return true;
    if (came == RawConnection::Came::end) {
      ended = true;
      return false;
    }
  }
  return false;
}

bool ask(RawConnection& connection, Tally& tally, const std::vector<std::byte>& frame,
         bool& ended) {
  tally.probe.asked_us = now_us();
  const bool good = connection.send(frame) && answered(connection, tally, ended);
  tally.probe.asked_us = 0;
  return good;
}

}  // namespace

void run_probe(const std::string& socket, Tally& tally, bool may_be_ended) {
  const auto hello = frame_of([](Builder m) {
    auto h = m.initHello();
    h.setVersion(wire::kProtocolVersion);
    h.setName("probe");
    h.setReadOnly(true);
  });
  const auto open = frame_of([](Builder m) {
    const auto encoded = encode(daemon::testing::small_namespace("probe@1"));
    m.setOpenNamespace({reinterpret_cast<const kj::byte*>(encoded.data()), encoded.size()});
  });
  const auto nothing = frame_of([](Builder m) { m.initLease(); });
  auto connection = RawConnection::open(socket);
  bool ended = false;
  if (!connection || !ask(*connection, tally, hello, ended) ||
      !ask(*connection, tally, open, ended)) {
    if (!tally.round_over) tally.failures.add("a client that does no wrong is not let in");
    return;
  }
  tally.probe.connected = true;
  while (!tally.round_over) {
    const bool beside = tally.fuzzing;
    const auto began = std::chrono::steady_clock::now();
    if (!ask(*connection, tally, nothing, ended)) break;
    const auto took = std::chrono::steady_clock::now() - began;
    if (tally.fuzzing == beside) tally.probe.round_trip[beside].add(took);
    constexpr int kEveryMs = 2;
    ::poll(nullptr, 0, kEveryMs);
  }
  if (ended && !may_be_ended && !tally.round_over)
    tally.failures.add("the session of a client that does no wrong was ended");
}

}  // namespace kvtier::protocol
