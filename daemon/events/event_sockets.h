// The two ZeroMQ sockets of the events, as vLLM has them: subscribers connect to one, and ask for
// what they missed at the other. Owned by the events' thread; nothing here waits but wait().
//
// A subscriber that does not read gets nothing more once `subscriber_batches` wait for it. What
// peers send is bounded in size and number.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "daemon/config/config.h"
#include "daemon/events/replay_buffer.h"

namespace kvtier::daemon::events {

class EventSockets {
 public:
  // Who asks, and from which number on.
  struct Request {
    std::string peer;
    std::uint64_t from = 0;
  };
  enum class Sent { yes, later, gone };

  // Errors: io, naming the endpoint and the mend.
  static Result<EventSockets> open(const Config::Events& config);

  // Until something can be read, `wake_fd` included, or the time is over. `requests`: whether those
  // count.
  void wait(int wake_fd, std::chrono::milliseconds time, bool requests);
  void publish(std::uint64_t number, const Payload& batch);
  // The next that waits; what is none is dropped.
  std::optional<Request> next_request();
  Sent answer(const std::string& peer, std::uint64_t number, const Payload& batch);
  Sent end_answer(const std::string& peer);
  // How many there are.
  std::uint32_t subscriptions();

 private:
  explicit EventSockets(std::string topic) : topic_(std::move(topic)) {}
  Sent reply(const std::string& peer, const std::string& topic, std::uint64_t number,
             const void* batch, std::size_t bytes);

  std::string topic_;
  zmq::context_t context_{1};
  zmq::socket_t subscribers_, replay_;
  std::uint32_t subscriptions_ = 0;
};

}  // namespace kvtier::daemon::events
