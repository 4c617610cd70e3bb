// HTTP over TCP for the service: connections, their bounds and timeouts, and who has gone.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/connection_places.h"
#include "engine_adapter/reference/server/limits.h"
#include "engine_adapter/reference/server/server_metrics.h"
#include "engine_adapter/reference/server/service.h"
#include "kvtier/result.h"

namespace kvtier::engine::server {

struct HttpOptions {
  std::string address = "127.0.0.1";
  std::uint16_t port = 8000;  // 0: any that is free
  std::uint32_t connections_max = 256;
  std::uint32_t drain_s_max = 30;  // for the answers under way, once asked to end
};

class HttpServer {
 public:
  // Both outlive the server. Errors: invalid (the address), io (it cannot be listened on).
  static Result<std::unique_ptr<HttpServer>> listen(const HttpOptions& options, Service& service,
                                                    ServerMetrics& metrics);

  std::uint16_t port() const { return acceptor_.local_endpoint().port(); }

  // Serves on this thread and some more until stop(), or SIGINT or SIGTERM comes. After the first
  // signal nobody is let in any more and the answers under way are ended; a second one cuts them
  // off.
  void run();
  // Any thread.
  void stop() { io_.stop(); }

 private:
  HttpServer(const HttpOptions& options, Service& service, ServerMetrics& metrics)
      : options_(options),
        service_(service),
        metrics_(metrics),
        acceptor_(strand_),
        drain_end_(strand_),
        places_(options.connections_max + kSparePlaces) {}

  void wait_for_signal(boost::asio::signal_set& signals);
  void end_if_drained();
  boost::asio::awaitable<void> accept();
  boost::asio::awaitable<void> serve(std::shared_ptr<boost::beast::tcp_stream> stream,
                                     ConnectionPlaces::Id place);
  bool has_room_for(const std::string& target) const;

  const HttpOptions options_;
  Service& service_;
  ServerMetrics& metrics_;
  std::atomic<std::uint32_t> answering_{0};
  std::atomic<bool> draining_{false};
  boost::asio::io_context io_;
  // Of those who let in and end.
  boost::asio::strand<boost::asio::io_context::executor_type> strand_ = make_strand(io_);
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer drain_end_;
  ConnectionPlaces places_;  // after io_: what closes a connection has a strand of it
};

}  // namespace kvtier::engine::server
