#include "daemon/session/connection.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <iterator>

#include "core/base/check.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

Connection::Connection(SessionId id, Peer peer, Socket socket, SessionContext& context,
                       Doomed doomed)
    : id_(id),
      peer_(std::move(peer)),
      socket_(std::move(socket)),
      context_(context),
      doomed_(std::move(doomed)),
      writer_(limits::kSessionOutputBytesMax),
      pause_(socket_.get_executor()),
      began_(Clock::now()),
      hello_due_since_(began_),
      last_heard_(began_),
      frame_began_(began_),
      last_read_(began_) {}

void Connection::set_name(const std::string& given) {
  name_ = given.substr(0, 64);
  std::ranges::replace_if(
      name_, [](char c) { return c >= 0 && (c < 0x20 || c == 0x7F); }, '?');
}

void Connection::start() {
  socket_.non_blocking(true);
  spdlog::debug("session {} begins: pid {}, uid {}, gid {}", id_, peer_.pid, peer_.uid, peer_.gid);
  wait_readable();
}

void Connection::end(const std::string& why) {
  if (!open_) return;
  open_ = false;
  spdlog::debug("session {} ({}, pid {}, uid {}) ends: {}", id_, name_, peer_.pid, peer_.uid, why);
  pause_.cancel();
  doomed_(id_);
}

void Connection::close() {
  KVTIER_CHECK(!open_);
  boost::system::error_code ignored;
  UniqueFd socket(socket_.release(ignored));
  auto descriptors = reader_.take_refused();
  if (refused_ && descriptors.empty()) {
    context_.farewells.see_off(peer_.uid, std::move(socket));
  } else {
    context_.closings.close(peer_.uid, std::move(socket), std::move(descriptors));
  }
  closed();
}

void Connection::hear_out(const std::string& why) {
  if (!open_) return;
  std::vector<wire::Frame> frames;
  const auto received =
      reader_.receive(socket_.native_handle(), frames, limits::kFramesHeardOutMax);
  if (!received) input_ended_ = received.error();
  std::ranges::move(frames, std::back_inserter(received_));
  const auto until = Clock::now() + limits::kLastWordsTime;
  while (open_ && !received_.empty() && !in_debt() && Clock::now() < until) {
    if (auto good = handle_next(); !good) return refuse(good.error());
    while (has_more_to_do()) do_more();
  }
  if (received_.empty() && input_ended_) return input_over();
  end(why);
}

void Connection::refuse(const Error& why) {
  warn("is ended: " + why.message);
  reply_error(0, why);
  refused_ = true;
  end(why.message);
}

void Connection::warn(const std::string& what) {
  const auto left_out = context_.log_budget.take(Clock::now());
  if (!left_out) return;
  spdlog::warn("session {} ({}, pid {}, uid {}) {}{}", id_, name_, peer_.pid, peer_.uid, what,
               lines_left_out(*left_out));
}

void Connection::excuse(Clock::time_point now) noexcept {
  hello_due_since_ = last_heard_ = frame_began_ = last_read_ = now;
}

std::optional<Error> Connection::overdue(Clock::time_point now) {
  const auto past = [&](Clock::time_point since, std::chrono::milliseconds bound,
                        const std::string& what, const char* setting) -> std::optional<Error> {
    if (now - since <= bound) return std::nullopt;
    return make_error(Errc::refused, what + " for " + std::to_string(bound.count()) +
                                         " ms: see [limits] " + setting);
  };
  const auto& limits = context_.limits;
  if (writer_.empty() || writer_.sent() != sent_seen_) {
    sent_seen_ = writer_.sent();
    last_read_ = now;
  }
  if (!greeted_) {
    if (auto late = past(hello_due_since_, limits.hello_time, "no hello", "hello_time_ms"))
      return late;
  }
  if (reader_.in_progress() && !paused_) {
    if (auto late =
            past(frame_began_, limits.frame_time, "a frame was not complete", "frame_time_ms")) {
      return late;
    }
  }
  return past(last_read_, limits.unread_time, "the peer has read nothing of what waits",
              "unread_time_ms");
}

void Connection::wait_readable() {
  socket_.async_wait(Socket::wait_read,
                     [self = shared_from_this()](boost::system::error_code error) {
                       if (!error && self->open_) self->take_frames();
                     });
}

void Connection::take_frames() {
  std::vector<wire::Frame> frames;
  const auto received = reader_.receive(socket_.native_handle(), frames, limits::kFramesPerTurn);
  if (!frames.empty()) last_heard_ = Clock::now();
  if (!frames.empty() || !frame_under_way_) frame_began_ = Clock::now();
  frame_under_way_ = reader_.in_progress();
  std::ranges::move(frames, std::back_inserter(received_));
  if (!received) input_ended_ = received.error();
  work();
}

// Handles what has come, as far as its user's requests per second and its part of a turn allow,
// and then reads on.
void Connection::work() {
  const auto until = Clock::now() + limits::kFramesTime;
  for (bool first = true; has_more_to_do() || !received_.empty(); first = false) {
    const bool enough = !first && Clock::now() >= until;
    if (enough || (!first && has_more_to_do())) {
      return boost::asio::post(socket_.get_executor(), [self = shared_from_this()] {
        if (self->open_) self->work();
      });
    }
    if (has_more_to_do()) {
      do_more();
      continue;
    }
    if (in_debt()) return pause();
    if (auto good = handle_next(); !good) return refuse(good.error());
    if (!open_) return;
  }
  if (!input_ended_) return wait_readable();
  input_over();
}

void Connection::input_over() {
  const Error why = *input_ended_;
  if (why.code != Errc::malformed) return end(why.message);
  ++context_.counts.frame_errors;
  refuse(why);
}

Result<void> Connection::handle_next() {
  wire::Frame frame = std::move(received_.front());
  received_.pop_front();
  constexpr double kBytesOfOneRequest = 4096;
  charge(static_cast<double>(frame.bytes()) / kBytesOfOneRequest);
  auto good = handle(frame);
  if (!good) ++context_.counts.frame_errors;
  return good;
}

bool Connection::in_debt() {
  return context_.users.in_debt_for(peer_.uid, Clock::now()) > Clock::duration::zero();
}

void Connection::pause() {
  paused_ = true;
  pause_.expires_after(context_.users.in_debt_for(peer_.uid, Clock::now()));
  pause_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (error || !self->open_) return;
    self->paused_ = false;
    self->frame_began_ = Clock::now();
    self->work();
  });
}

void Connection::wait_writable() {
  if (write_waiting_ || writer_.empty() || !open_) return;
  write_waiting_ = true;
  socket_.async_wait(Socket::wait_write,
                     [self = shared_from_this()](boost::system::error_code error) {
                       self->write_waiting_ = false;
                       if (error || !self->open_) return;
                       if (auto sent = self->writer_.send(self->socket_.native_handle()); !sent)
                         return self->output_failed(sent.error());
                       self->wait_writable();
                     });
}

bool Connection::reply(std::uint64_t id, const std::function<void(Builder)>& fill,
                       UniqueFd descriptor) {
  if (!open_ || !peer_reads_) return false;
  capnp::MallocMessageBuilder message;
  Builder root = message.initRoot<wire::Message>();
  root.setId(id);
  fill(root);
  auto pushed = writer_.push(message, std::move(descriptor));
  if (pushed) pushed = writer_.send(socket_.native_handle());
  if (!pushed) {
    output_failed(pushed.error());
    return false;
  }
  wait_writable();
  return true;
}

// A peer that has gone may have said something before, which is still to be heard: the input's end
// ends the session.
void Connection::output_failed(const Error& why) {
  if (why.code != Errc::unavailable) return end(why.message);
  peer_reads_ = false;
  writer_ = wire::FrameWriter(limits::kSessionOutputBytesMax);
}

void Connection::reply_error(std::uint64_t id, const Error& error) {
  reply(id, [&](Builder root) {
    auto failure = root.initError();
    failure.setCode(static_cast<std::uint16_t>(error.code));
    failure.setMessage(error.message);
  });
}

}  // namespace kvtier::daemon
