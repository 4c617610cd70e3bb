// A hostile process: a few sessions, and one act after another until it is told to stop.
#pragma once

#include <deque>

#include "tests/protocol/hostile/hostile_session.h"

namespace kvtier::protocol {

// The kinds that a run has; actors take turns at them.
std::span<const Who> kinds_of_actors();

class Actor {
 public:
  Actor(const Who& who, const std::string& socket, const Universe& universe, Tally& tally,
        std::uint64_t seed, std::uint64_t stream);
  // Until tally.stop, or until it dies of its own will.
  void run();

 private:
  void turn(HostileSession& session);
  bool begin(HostileSession& session);
  void say(HostileSession& session);
  void administer(HostileSession& session);
  void misuse_memory(HostileSession& session);
  void misuse_connection(HostileSession& session);
  void crowd();
  void storm(HostileSession& session);
  void idle();

  const Who& who_;
  std::string socket_;
  const Universe& universe_;
  Tally& tally_;
  Random random_;
  std::deque<HostileSession> sessions_;  // they stay where they are
  bool dead_ = false;
};

}  // namespace kvtier::protocol
