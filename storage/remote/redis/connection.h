// One connection to a server: commands out of it, in a pipeline, and replies in their order. A
// value is sent from where the record lies and received straight to where it is wanted.
//
// For the store's thread. After close() nothing of an operation's memory is touched any more: that
// is how one that is late is taken back.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvtier/deadline.h"
#include "storage/remote/redis/operation.h"
#include "storage/remote/redis/socket.h"

namespace kvtier::storage {

class Connection {
 public:
  // At a time, of operations that move values, on one connection.
  static constexpr std::size_t kOperationsMax = 32;
  static constexpr std::uint64_t kBytesMax = 4U << 20;

  struct Answered {
    OperationPtr operation;
    Answer answer;
  };

  // Errors: io.
  Result<void> open(const SocketAddress& to, SSL_CTX* tls, const std::string& host,
                    Clock::time_point now);
  // Gives back what was not answered, in the order in which it was sent.
  std::vector<OperationPtr> close();
  bool is_open() const noexcept { return socket_.has_value(); }
  // Connected, TLS included. Errors: io.
  Result<bool> advance();

  bool is_shaking_hands() const noexcept { return socket_ && socket_->is_shaking_hands(); }

  bool has_room(std::uint64_t bytes) const noexcept {
    return awaited_.empty() || (awaited_.size() < kOperationsMax && bytes_ + bytes <= kBytesMax);
  }
  std::uint64_t bytes_awaited() const noexcept { return bytes_; }
  bool awaits(const Operation& operation) const noexcept;
  // Anything was received since it was opened.
  bool was_heard() const noexcept { return was_heard_; }

  void send(OperationPtr operation, Clock::time_point now);
  // `user` and `password` for auth, the expiry in seconds for set.
  void send_auth(OperationPtr operation, std::string_view user, std::string_view password,
                 Clock::time_point now);
  void set_expiry(std::uint64_t seconds) noexcept { expiry_s_ = seconds; }

  // Moves what can be moved now. Errors: io, unavailable, malformed; then it is to be closed.
  Result<void> transmit(Clock::time_point now);
  Result<void> receive(std::vector<Answered>& answered, Clock::time_point now);

  // Since when it has been asked without a word from it.
  std::optional<Clock::time_point> silent_since() const noexcept;
  int descriptor() const noexcept { return socket_->descriptor(); }
  short wanted() const noexcept { return socket_->wanted(!out_.empty()); }
  bool has_more() const noexcept { return more_; }

 private:
  struct Piece {
    std::string own;                  // sent, where it is not empty
    std::span<const std::byte> body;  // of an operation that is awaited
  };
  // The body of a value that is on its way, and the line feed behind it.
  struct Body {
    std::span<std::byte> into;  // what has not come yet of the first operation's that is awaited
    std::uint64_t left = 0;     // with the two bytes at its end
    bool wanted = false;        // else it is dropped
  };

  void await(OperationPtr operation, Clock::time_point now);
  std::string& text();
  void put(std::span<const std::byte> body);
  Result<void> consume(std::vector<Answered>& answered);
  Result<void> take_line(std::string_view line, std::vector<Answered>& answered);
  Result<void> begin_body(long long length, std::vector<Answered>& answered);
  Result<void> take_body(std::vector<Answered>& answered);
  void answer(Answer answer, std::vector<Answered>& answered);

  std::optional<RedisSocket> socket_;
  ReplyReader reader_;
  std::uint64_t expiry_s_ = 0;
  std::deque<OperationPtr> awaited_;  // null: the answer to ASKING
  std::uint64_t bytes_ = 0;           // of the values of those
  std::deque<Piece> out_;
  std::size_t out_sent_ = 0;  // of the first piece
  std::optional<Body> body_;
  std::vector<std::byte> in_;
  std::size_t in_begin_ = 0, in_end_ = 0;
  bool more_ = false;  // there may be more to receive
  Clock::time_point heard_{};
  bool was_heard_ = false;
};

}  // namespace kvtier::storage
