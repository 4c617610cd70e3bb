// What is said on the socket and who waits for an answer, from connecting to hanging up.
//
// Owned by the session, on its thread. It holds:
// - Every request is answered once: by the daemon, or at hang_up() with why.
// - There is a connection() from welcome to forget(), and no socket is older than it.
// - What fails while something is said is kept (`broken`) until the session looks, so that nobody
//   loses the connection under the feet of who is speaking.
// It does not know what the messages mean.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/session/connection.h"
#include "core/wire/control_socket.h"

namespace kvtier::session {

class Conversation {
 public:
  using Fill = std::function<void(wire::Message::Builder)>;
  // Called exactly once; an error it returns ends the connection.
  using Done = std::function<Result<void>(Result<wire::Message::Reader>)>;
  // Whether the daemon is taken for dead if it owes this answer and is silent.
  enum class Patience { bounded, unbounded };

  // A daemon that owes an answer and is silent for `answer_max` is taken for dead.
  Conversation(std::string path, std::chrono::milliseconds answer_max)
      : path_(std::move(path)), answer_max_(answer_max) {}

  void begin(UniqueFd socket, Clock::time_point now);
  // The daemon has made itself known. `hello_sent`: when it was asked to. Errors: io.
  Result<void> welcomed(DirectoryView directory, std::chrono::milliseconds lease_time,
                        Clock::time_point hello_sent);
  // Whoever waits is told `why`. The connection, which has ended, is there until forget().
  void hang_up(const Error& why);
  void forget();

  bool is_open() const noexcept { return static_cast<bool>(socket_); }
  int fd() const noexcept { return socket_.fd(); }
  bool unsent() const noexcept { return socket_.unsent(); }
  // Null before welcome.
  const std::shared_ptr<Connection>& connection() const noexcept { return connection_; }

  void tell(const Fill& fill);
  void ask(const Fill& fill, Done done, Patience patience = Patience::bounded);
  void send();
  // What has come, also before an error. Errors: as ControlSocket.
  Result<void> receive(std::vector<wire::Frame>& frames);
  // Who waits for the answer with this number; none if nobody does.
  std::optional<Done> take_waiting(std::uint64_t id);

  bool owes_answers() const noexcept { return !waiting_.empty(); }
  // Whether an answer is owed for too long; with what that means.
  bool is_overdue() const;
  Error silence() const;
  Clock::time_point last_received() const noexcept { return last_received_; }
  std::chrono::milliseconds answer_max() const noexcept { return answer_max_; }

  void note_broken(const Error& error) {
    if (!broken_) broken_ = error;
  }
  bool is_broken() const noexcept { return broken_.has_value(); }
  std::optional<Error> take_broken() { return std::exchange(broken_, {}); }

 private:
  struct Waiting {
    Done done;
    Patience patience;
    Clock::time_point asked;
  };

  const std::string path_;
  const std::chrono::milliseconds answer_max_;
  ControlSocket socket_;
  std::shared_ptr<Connection> connection_;
  std::map<std::uint64_t, Waiting> waiting_;
  std::uint64_t last_id_ = 0;
  Clock::time_point last_received_{};
  std::optional<Error> broken_;
};

}  // namespace kvtier::session
