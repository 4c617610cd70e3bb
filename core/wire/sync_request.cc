#include "core/wire/sync_request.h"

#include <poll.h>

#include <algorithm>
#include <iterator>

namespace kvtier::session {

Result<SyncSession> SyncSession::connect(const std::string& socket, const std::string& name,
                                         Deadline deadline) {
  auto fd = connect_unix(socket);
  if (!fd) return fd.error();
  SyncSession session;
  session.path_ = socket;
  session.socket_ = ControlSocket(std::move(*fd));
  std::uint32_t version = 0;
  const auto hello = [&](wire::Message::Builder m) {
    auto h = m.initHello();
    h.setVersion(wire::kProtocolVersion);
    h.setFeatures(wire::kFeatures);
    h.setName(name);
  };
  const auto welcome = [&](wire::Message::Reader m) {
    if (m.isWelcome()) version = m.getWelcome().getVersion();
  };
  if (auto good = session.request(hello, welcome, deadline); !good) return good.error();
  if (version != wire::kProtocolVersion) {
    return make_error(Errc::version, "the daemon at " + socket + " speaks protocol version " +
                                         std::to_string(version) + ", this program version " +
                                         std::to_string(wire::kProtocolVersion) +
                                         "; install the same release of both");
  }
  return session;
}

Result<void> SyncSession::request(const std::function<void(wire::Message::Builder)>& fill,
                                  const std::function<void(wire::Message::Reader)>& use,
                                  Deadline deadline) {
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<wire::Message>();
  root.setId(++last_id_);
  fill(root);
  if (auto good = socket_.push(message); !good) return good;
  for (;;) {
    auto frame = next_frame(deadline);
    if (!frame) return frame.error();
    bool answered = false;
    Result<void> answer;
    const auto read = frame->read([&](wire::Message::Reader m) {
      // One of no request is the daemon's last word: why it ends the session.
      answered = m.getId() == last_id_ || (m.getId() == 0 && m.isError());
      if (!answered) return;
      if (m.isError()) {
        answer = error_of(m.getError());
      } else {
        use(m);
      }
    });
    if (!read) return read;
    if (answered) return answer;
  }
}

Result<wire::Frame> SyncSession::next_frame(Deadline deadline) {
  while (frames_.empty()) {
    if (const auto sent = socket_.send(); !sent) {
      // A daemon that has hung up may have said why.
      std::vector<wire::Frame> frames;
      [[maybe_unused]] const auto ended = socket_.receive(frames);
      if (frames.empty()) return sent.error();
      std::ranges::move(frames, std::back_inserter(frames_));
      break;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd fd{socket_.fd(), static_cast<short>(POLLIN | (socket_.unsent() ? POLLOUT : 0)), 0};
    if (left <= 0 || ::poll(&fd, 1, static_cast<int>(std::min<long>(left, 60'000))) == 0) {
      if (Clock::now() < deadline) continue;
      return make_error(Errc::deadline,
                        "the daemon at " + path_ + " did not answer in time; is it hung?");
    }
    std::vector<wire::Frame> frames;
    const auto received = socket_.receive(frames);
    std::ranges::move(frames, std::back_inserter(frames_));
    if (!received && frames_.empty()) return received.error();
  }
  wire::Frame frame = std::move(frames_.front());
  frames_.pop_front();
  return frame;
}

}  // namespace kvtier::session
