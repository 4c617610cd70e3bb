#include "daemon/events/event_sockets.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <zmq_addon.hpp>

#include "core/base/fd.h"
#include "daemon/limits.h"

namespace kvtier::daemon::events {

namespace {

constexpr std::string_view kIpc = "ipc://";
constexpr std::uint64_t kEnd = ~std::uint64_t{0};  // vLLM's -1: there is no more

std::array<std::uint8_t, 8> big_endian(std::uint64_t number) {
  std::array<std::uint8_t, 8> bytes;
  for (std::size_t i = bytes.size(); i-- > 0; number >>= 8)
    bytes[i] = static_cast<std::uint8_t>(number & 0xFF);
  return bytes;
}

// A socket file is for those whom the mode names, from the moment that it is there: the process's
// umask leaves it to its own user until then.
void bind(zmq::socket_t& socket, const std::string& endpoint, std::uint32_t ipc_mode) {
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::maxmsgsize, std::int64_t{limits::kEventRequestBytesMax});
  socket.set(zmq::sockopt::ipv6, endpoint.find('[') != std::string::npos);
  socket.bind(endpoint);
  if (endpoint.starts_with(kIpc)) (void)::chmod(endpoint.c_str() + kIpc.size(), ipc_mode);
}

}  // namespace

Result<EventSockets> EventSockets::open(const Config::Events& config) {
  EventSockets sockets(config.topic);
  const std::string* binding = &config.endpoint;
  try {
    sockets.subscribers_ = zmq::socket_t(sockets.context_, zmq::socket_type::xpub);
    // Each subscription and each end of one is heard of, so that they can be counted.
    sockets.subscribers_.set(zmq::sockopt::xpub_verboser, true);
    sockets.subscribers_.set(zmq::sockopt::sndhwm, static_cast<int>(config.subscriber_batches));
    bind(sockets.subscribers_, config.endpoint, config.ipc_mode);
    if (!config.replay_endpoint.empty()) {
      binding = &config.replay_endpoint;
      sockets.replay_ = zmq::socket_t(sockets.context_, zmq::socket_type::router);
      // Says who is not there or does not read, rather than to drop what is for them.
      sockets.replay_.set(zmq::sockopt::router_mandatory, true);
      sockets.replay_.set(zmq::sockopt::rcvhwm, static_cast<int>(limits::kEventRequestsMax));
      sockets.replay_.set(zmq::sockopt::sndhwm, static_cast<int>(limits::kEventRequestsMax));
      bind(sockets.replay_, config.replay_endpoint, config.ipc_mode);
    }
  } catch (const zmq::error_t& error) {
    return make_error(Errc::io, "events: cannot listen on " + *binding + ": " + error.what() +
                                    ": see [events] in the configuration");
  }
  return sockets;
}

void EventSockets::wait(int wake_fd, std::chrono::milliseconds time, bool requests) {
  std::vector<zmq::pollitem_t> items{{nullptr, wake_fd, ZMQ_POLLIN, 0},
                                     {subscribers_.handle(), 0, ZMQ_POLLIN, 0}};
  if (requests && replay_) items.push_back({replay_.handle(), 0, ZMQ_POLLIN, 0});
  try {
    zmq::poll(items, time);
  } catch (const zmq::error_t&) {
    // A signal: the caller looks at everything anyway.
  }
}

void EventSockets::publish(std::uint64_t number, const Payload& batch) {
  const auto bytes = big_endian(number);
  // Whoever has too much waiting does not get it, and sees the number missing.
  (void)zmq::send_multipart(
      subscribers_,
      std::array<zmq::const_buffer, 3>{zmq::buffer(topic_), zmq::buffer(bytes),
                                       zmq::buffer(batch->data(), batch->size())},
      zmq::send_flags::dontwait);
}

std::optional<EventSockets::Request> EventSockets::next_request() {
  if (!replay_) return std::nullopt;
  std::vector<zmq::message_t> parts;
  while (zmq::recv_multipart(replay_, std::back_inserter(parts), zmq::recv_flags::dontwait)) {
    // Peer, an empty part, and the number.
    if (parts.size() == 3 && parts[1].size() == 0 && parts[2].size() == sizeof(std::uint64_t)) {
      Request request{parts[0].to_string(), 0};
      for (std::size_t i = 0; i < parts[2].size(); ++i)
        request.from = request.from << 8 | parts[2].data<std::uint8_t>()[i];
      return request;
    }
    parts.clear();
  }
  return std::nullopt;
}

EventSockets::Sent EventSockets::answer(const std::string& peer, std::uint64_t number,
                                        const Payload& batch) {
  return reply(peer, topic_, number, batch->data(), batch->size());
}

EventSockets::Sent EventSockets::end_answer(const std::string& peer) {
  return reply(peer, {}, kEnd, nullptr, 0);
}

EventSockets::Sent EventSockets::reply(const std::string& peer, const std::string& topic,
                                       std::uint64_t number, const void* batch, std::size_t bytes) {
  const auto number_bytes = big_endian(number);
  try {
    const auto sent = zmq::send_multipart(
        replay_,
        std::array<zmq::const_buffer, 5>{zmq::buffer(peer), zmq::const_buffer{}, zmq::buffer(topic),
                                         zmq::buffer(number_bytes), zmq::buffer(batch, bytes)},
        zmq::send_flags::dontwait);
    return sent ? Sent::yes : Sent::later;
  } catch (const zmq::error_t&) {
    return Sent::gone;
  }
}

std::uint32_t EventSockets::subscriptions() {
  zmq::message_t message;
  while (subscribers_.recv(message, zmq::recv_flags::dontwait)) {
    if (message.size() == 0) continue;
    const auto kind = message.data<std::uint8_t>()[0];
    if (kind == 1) ++subscriptions_;
    if (kind == 0) subscriptions_ -= std::min(subscriptions_, 1U);
  }
  return subscriptions_;
}

}  // namespace kvtier::daemon::events
