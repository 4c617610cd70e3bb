// Notices that the client of an answer under way has gone.
//
// A client that sends no more may still read: it has only said that its request was all (shutdown
// of its sending side). The kernel tells no difference between that and a closed socket until
// something is sent there: a closed one answers with a reset. So an end of what is received is no
// reason to give up. Where events are sent anyway, they find out; where nothing would be sent until
// the whole answer is there, "100 Continue" is, which HTTP/1.1 lets a server send at any time
// before its answer and clients pass over: first after kProbeAfter, so that most answers are there
// by then, and at growing intervals from then on. A client of HTTP/1.0 is not probed.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <chrono>
#include <memory>

#include "engine_adapter/reference/server/exchange.h"

namespace kvtier::engine::server {

// The connection's strand.
class ClientWatch : public std::enable_shared_from_this<ClientWatch> {
 public:
  ClientWatch(std::shared_ptr<boost::beast::tcp_stream> stream, bool may_probe);

  // `exchange` is abandoned as soon as the client is known to have gone, until end().
  void begin(std::shared_ptr<Exchange> exchange);
  // The answer has begun: what is written to it tells.
  void stop_probing();
  void end();

 private:
  void await_input();
  void await_reset();
  void probe(std::chrono::milliseconds after);
  void gone();

  const std::shared_ptr<boost::beast::tcp_stream> stream_;
  std::shared_ptr<Exchange> exchange_;  // null once it ended
  boost::asio::steady_timer timer_;
  bool may_probe_;
};

}  // namespace kvtier::engine::server
