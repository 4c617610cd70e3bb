// One client's connection: its frames, in which order and how fast they are handled, what waits to
// be read by it, and how it ends. What the frames say is for whoever derives from it (Session).
//
// Lives on the control thread and never waits: what the peer does not read is queued up to a bound,
// past which the connection ends. A peer's frames are handled one after the other, a bounded time
// in one turn, and not at all while its user owes for earlier ones (Users). Whatever a peer sends
// can end its own connection and nothing else.
//
// A connection may be found to be at its end in the middle of anything that it or the cache does,
// so end() only marks it: it says and hears nothing more, and everything that is held for it stays
// as it is until close() is called, at the end of the turn.
#pragma once

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/wire/frame.h"
#include "daemon/peers/peer.h"
#include "daemon/session/session_context.h"

namespace kvtier::daemon {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;
  using Clock = std::chrono::steady_clock;
  using Doomed = std::function<void(SessionId)>;
  using Builder = wire::Message::Builder;

  Connection(SessionId id, Peer peer, Socket socket, SessionContext& context, Doomed doomed);
  Connection(const Connection&) = delete;
  virtual ~Connection() = default;

  void start();
  // Marks it; `doomed` is called once, from here or from the I/O that failed. close() is owed.
  void end(const std::string& why);
  // Closes a connection that was ended. Never from within its own work.
  void close();
  bool open() const noexcept { return open_; }
  // The same as end(), after what the peer had sent has been handled: for a peer that sends no
  // more.
  void hear_out(const std::string& why);
  // Ends, and the peer is told why, if it reads.
  void refuse(const Error& why);

  // The bound on time that the peer is past: to say hello, to complete a frame, to read.
  std::optional<Error> overdue(Clock::time_point now);
  // The daemon itself stood still: the peer gets its time again.
  void excuse(Clock::time_point now) noexcept;

  // False where the peer will never hear of it.
  bool reply(std::uint64_t id, const std::function<void(Builder)>& fill, UniqueFd descriptor = {});
  void reply_error(std::uint64_t id, const Error& error);
  // To the log, as far as there is room for what peers do.
  void warn(const std::string& what);
  // A request's price, of what its user may ask for in a second.
  void charge(double cost) { context_.users.charge(peer_.uid, cost, Clock::now()); }

  SessionId id() const noexcept { return id_; }
  const Peer& peer() const noexcept { return peer_; }
  const std::string& name() const noexcept { return name_; }
  Clock::time_point began() const noexcept { return began_; }
  Clock::time_point last_heard() const noexcept { return last_heard_; }
  std::size_t unsent_bytes() const noexcept { return writer_.bytes(); }

 protected:
  bool greeted() const noexcept { return greeted_; }
  void set_greeted() noexcept { greeted_ = true; }
  // For logs and terminals: what cannot be shown is replaced.
  void set_name(const std::string& given);

 private:
  // What the peer says. An error ends the connection, and the peer is told.
  virtual Result<void> handle(wire::Frame& frame) = 0;
  // What the last frame left to be done, a part of it in a step, before the next is handled.
  virtual bool has_more_to_do() const = 0;
  virtual void do_more() = 0;
  // It is closed: what was held for it is let go of.
  virtual void closed() = 0;

  void wait_readable();
  void wait_writable();
  void take_frames();
  void work();
  Result<void> handle_next();
  void input_over();
  void output_failed(const Error& why);
  bool in_debt();
  void pause();

  const SessionId id_;
  const Peer peer_;
  Socket socket_;
  SessionContext& context_;
  Doomed doomed_;
  std::string name_;
  bool greeted_ = false;
  bool open_ = true;
  bool refused_ = false;  // ended by us, with a reason that the peer is to read
  bool peer_reads_ = true;
  bool write_waiting_ = false;
  // No request has descriptors.
  wire::FrameReader reader_{wire::FrameReader::Descriptors::refused};
  wire::FrameWriter writer_;
  std::deque<wire::Frame> received_;  // not handled yet; at most kFramesPerTurn
  std::optional<Error> input_ended_;  // after those
  boost::asio::steady_timer pause_;
  bool paused_ = false;  // its user's requests per second are used up
  bool frame_under_way_ = false;
  const Clock::time_point began_;
  // Since when the peer has time: to say hello, since its last frame, to complete this one, to
  // read.
  Clock::time_point hello_due_since_, last_heard_, frame_began_, last_read_;
  std::uint64_t sent_seen_ = 0;
};

}  // namespace kvtier::daemon
