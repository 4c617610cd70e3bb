// The session's connections: made, kept, lost; and what comes on them, given to whom it concerns.
#include <algorithm>

#include "client/session/limits.h"
#include "client/session/session.h"
#include "client/session/thread/wire_values.h"

namespace kvtier::session {

void Session::connect(Clock::time_point now) {
  const auto jittered =
      delay_.count() / 2 + static_cast<long>(jitter_() % (delay_.count() / 2 + 1));
  next_attempt_ = now + milliseconds(jittered);
  delay_ = std::min(delay_ * 2, std::max(options_.reconnect_delay_max, kReconnectDelayMin));
  auto fd = connect_unix(options_.socket);
  if (!fd) {
    log_.line(Topic::connection, LogLevel::warning, fd.error().message);
    const std::lock_guard lock(mutex_);
    last_failure_ = fd.error();
    return;
  }
  conversation_.begin(std::move(*fd), now);
  say_hello();
}

void Session::say_hello() {
  hello_sent_ = Clock::now();
  const auto done = [](const Result<wire::Message::Reader>& reply) -> Result<void> {
    if (!reply) return reply.error();
    return malformed("something else than a welcome");
  };
  conversation_.ask(
      [&](wire::Message::Builder m) {
        auto hello = m.initHello();
        hello.setVersion(wire::kProtocolVersion);
        hello.setFeatures(wire::kFeatures);
        hello.setName(options_.name);
        hello.setReadOnly(options_.read_only);
        hello.setClient(client_id_);
        extents_.fill_hello(hello, read_only_);
      },
      done);
}

Result<void> Session::welcome(wire::Frame& frame, wire::Message::Reader message) {
  const auto welcome = message.getWelcome();
  if (welcome.getVersion() != wire::kProtocolVersion) {
    return make_error(Errc::version, "kvtierd at " + options_.socket + " speaks protocol version " +
                                         std::to_string(welcome.getVersion()) +
                                         ", this client version " +
                                         std::to_string(wire::kProtocolVersion) +
                                         "; install the same release of both");
  }
  if (welcome.getLeaseMs() == 0) return malformed("a lease time of 0");
  const UniqueFd fd = frame.take_descriptor();
  if (auto good = check_size(fd, welcome.getDirectoryBytes()); !good) return good;
  auto directory = DirectoryView::map(fd.get(), welcome.getDirectoryBytes(), welcome.getDevice());
  if (!directory) return directory.error();
  if (auto good = extents_.take_welcome(welcome); !good) return good;
  if (auto good = conversation_.welcomed(std::move(*directory), milliseconds(welcome.getLeaseMs()),
                                         hello_sent_);
      !good)
    return good;
  read_only_ = options_.read_only || welcome.getReadOnly();
  hints_.begin(welcome.getFeatures());
  slots_.begin({nullptr, [weak = weak_from_this()](std::nullptr_t) {
                  if (const auto self = weak.lock()) self->mailbox_.wake();
                }});
  directory_.publish(conversation_.connection());
  welcomed_at_ = Clock::now();
  reports_.welcomed(welcome.getFeatures(), Clock::now());
  has_remote_ = (welcome.getFeatures() & wire::kRemoteTier) != 0;
  Counters::add(counters_.connects);
  namespaces_.open_all();
  log_.line(Topic::connection, LogLevel::info, "connected to kvtierd at " + options_.socket);
  const std::lock_guard lock(mutex_);
  connected_ = true;
  state_changed_.notify_all();
  return {};
}

// A daemon that has hung up may have said why.
Error Session::last_words(const Error& otherwise) {
  if (otherwise.code != Errc::unavailable) return otherwise;
  const auto heard = receive();
  return !heard && heard.error().code == Errc::refused ? heard.error() : otherwise;
}

void Session::drop(const Error& why) {
  const auto now = Clock::now();
  const bool proven = conversation_.connection() && now - welcomed_at_ >= kSessionProven;
  if (proven) delay_ = kReconnectDelayMin;
  fail_everything(make_error(Errc::unavailable, "the connection to kvtierd ended: " + why.message));
  log_.line(Topic::connection, LogLevel::warning, "the connection ended: " + why.message);
  const std::lock_guard lock(mutex_);
  last_failure_ = why;
  state_changed_.notify_all();
  next_attempt_ = now + (proven ? delay_ / 2 : delay_);
}

void Session::fail_everything(const Error& why) {
  if (const auto& connection = conversation_.connection()) {
    connection->end();
    slots_.end();
    extents_.keep_until(Clock::now() + kMappingsKeptMax);
  }
  {
    const std::lock_guard lock(mutex_);
    connected_ = false;
  }
  directory_.publish(nullptr);
  conversation_.hang_up(why);
  flushes_.end(why);
  leases_.end();
  namespaces_.end(why);
  conversation_.forget();
  slots_changed_();
}

Result<void> Session::receive() {
  std::vector<wire::Frame> frames;
  const auto received = conversation_.receive(frames);
  for (wire::Frame& frame : frames) {
    if (auto good = handle(frame); !good) return good;
  }
  return received;
}

// This thread may have been away for as long (a driver that maps memory can take its time): what
// came meanwhile lies in the socket and counts.
Result<void> Session::check_answers() {
  while (conversation_.is_overdue()) {
    const auto heard = conversation_.last_received();
    if (auto good = receive(); !good) return good;
    if (conversation_.last_received() == heard) return conversation_.silence();
  }
  return {};
}

Result<void> Session::handle(wire::Frame& frame) {
  std::uint64_t id = 0;
  Result<void> handled;
  const auto read = frame.read([&](wire::Message::Reader message) {
    id = message.getId();
    if (id == 0) handled = handle_event(frame, message);
  });
  if (!read) return read;
  return id == 0 ? handled : handle_reply(frame, id);
}

Result<void> Session::handle_reply(wire::Frame& frame, std::uint64_t id) {
  const auto waiting = conversation_.take_waiting(id);
  if (!waiting) return malformed("an answer that nobody asked for");
  const Conversation::Done& done = *waiting;
  Result<void> handled;
  const auto read = frame.read([&](wire::Message::Reader message) {
    if (message.isError()) {
      handled = done(error_of(message.getError()));
    } else if (message.isWelcome()) {
      // The one answer that carries a descriptor.
      handled =
          conversation_.connection() ? malformed("a second welcome") : welcome(frame, message);
    } else {
      handled = done(message);
    }
  });
  if (read) return handled;
  // Its bytes were no message; whoever waits must hear of it all the same.
  [[maybe_unused]] const auto ignored = done(read.error());
  return read;
}

Result<void> Session::handle_event(wire::Frame& frame, wire::Message::Reader message) {
  if (!conversation_.connection()) {
    if (message.isError()) return error_of(message.getError());
    return malformed("an event before its welcome");
  }
  switch (message.which()) {
    case wire::Message::EXTENT:
      return extents_.map(frame, message.getExtent(),
                          read_only() ? Mapping::Access::read : Mapping::Access::read_write);
    case wire::Message::EXTENT_GONE:
      extents_.forget(message.getExtentGone());
      return {};
    case wire::Message::READY:
      return leases_.land(message.getReady());
    case wire::Message::RECALL:
      slots_.recall(message.getRecall());
      return {};
    case wire::Message::NAMESPACE_CLOSED:
      close_namespace(message.getNamespaceClosed());
      return {};
    case wire::Message::ERROR:
      return error_of(message.getError());
    default:
      return malformed("an unknown event");
  }
}

void Session::close_namespace(std::uint32_t handle) {
  const auto closed = namespaces_.close(handle);
  if (!closed) return;
  slots_.abandon_all(*closed);
  slots_changed_();
  log_.line(Topic::name_space, LogLevel::warning, closed->refusal().message);
  announce();
}

}  // namespace kvtier::session
