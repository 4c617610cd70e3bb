// One session of a hostile client: its connection, what it has been given, what it waits for. What
// it says is in messages.h.
#pragma once

#include <capnp/message.h>

#include <functional>
#include <string>

#include "tests/protocol/hostile/answers.h"
#include "tests/protocol/hostile/belongings.h"
#include "tests/protocol/hostile/sender.h"
#include "tests/protocol/hostile/universe.h"

namespace kvtier::protocol {

class HostileSession {
 public:
  using Builder = wire::Message::Builder;
  using Fill = std::function<void(Builder)>;

  HostileSession(const Who& who, const Universe& universe, Tally& tally, Random& random);
  HostileSession(const HostileSession&) = delete;
  HostileSession& operator=(const HostileSession&) = delete;

  bool connect(const std::string& socket) { return sender_.connect(socket); }
  bool connected() const noexcept { return sender_.connected(); }
  void leave();  // with all that it holds
  void half_close() { sender_.half_close(); }
  // Takes what has come; waits for something for at most `wait_ms`.
  void take(int wait_ms);
  // How the next message goes out.
  void set_manner(Manner manner) noexcept { manner_ = manner; }
  bool waits() const noexcept { return answers_.any(); }

  // Sends it with a fresh id, or an odd one.
  void ask(const Fill& fill) { ask(fill, Asked()); }
  void ask(const Fill& fill, const Asked& asked);
  // Sends it as an event, mostly.
  void tell(const Fill& fill);
  // As it is.
  void send_raw(std::span<const std::byte> message, wire::Message::Which which);

  Belongings& has() noexcept { return has_; }
  const Who& who() const noexcept { return who_; }
  const Universe& universe() const noexcept { return universe_; }
  Tally& tally() noexcept { return tally_; }
  Random& random() noexcept { return random_; }
  std::uint64_t client() const noexcept { return client_; }

 private:
  void deliver(const Fill& fill, std::uint64_t id);

  const Who& who_;
  const Universe& universe_;
  Tally& tally_;
  Random& random_;
  Sender sender_;
  Belongings has_;
  Answers answers_;
  Manner manner_ = Manner::whole;
  const std::uint64_t client_;  // as its hello says
  std::uint64_t last_id_ = 0;
  std::uint32_t silent_ = 0;  // times that it waited for nothing
};

}  // namespace kvtier::protocol
