// A small HTTP/1.1 server for reading what the daemon shows of itself: GET and HEAD, no bodies,
// every size, number and time bounded. Owned by one thread, that of its io_context; never blocks.
//
// It answers only requests that name it by an address, "localhost" or a configured name: a page in
// somebody's browser whose own name was made to point here (DNS rebinding) gets nothing.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvtier/result.h"

namespace kvtier::daemon::ops {

struct HttpReply {
  unsigned status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  std::string content_policy = "default-src 'none'; frame-ancestors 'none'";
};

struct HttpCounts {
  std::uint64_t requests = 0, connections = 0, refused_connections = 0, bad_requests = 0;
};

class HttpServer {
 public:
  struct State;  // in http_server.cc
  // `reply` may be called later, on the same thread, once.
  using Handler =
      std::function<void(const std::string& path, std::function<void(HttpReply)> reply)>;

  // `hosts`: names, beside addresses and localhost, by which it may be asked.
  HttpServer(boost::asio::io_context& io, std::vector<std::string> hosts, Handler handler);
  ~HttpServer();

  // Errors: io. May be tried again.
  Result<void> listen(const boost::asio::ip::tcp::endpoint& at);
  bool listening() const noexcept;
  boost::asio::ip::tcp::endpoint address() const;
  const HttpCounts& counts() const noexcept;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace kvtier::daemon::ops
