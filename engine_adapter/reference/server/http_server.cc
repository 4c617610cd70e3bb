#include "engine_adapter/reference/server/http_server.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine_adapter/reference/server/client_watch.h"
#include "engine_adapter/reference/server/limits.h"

namespace kvtier::engine::server {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;

namespace {

// One connection's way back to its client. Its strand's.
class HttpReply : public Reply {
 public:
  HttpReply(std::shared_ptr<beast::tcp_stream> stream, ServerMetrics& metrics)
      : stream_(std::move(stream)), metrics_(metrics) {}

  void begin(unsigned version, bool keep_alive, bool head) {
    version_ = version;
    keep_alive_ = keep_alive;
    head_ = head;
  }
  bool keep_alive() const noexcept { return keep_alive_; }

  asio::awaitable<bool> whole(unsigned status, std::string content_type, std::string body,
                              std::string allow) override {
    unwatch();
    http::response<http::string_body> response{static_cast<http::status>(status), version_};
    response.set(http::field::content_type, content_type);
    if (!allow.empty()) response.set(http::field::allow, allow);
    if (status == 429) response.set(http::field::retry_after, "1");
    response.keep_alive(keep_alive_);
    response.content_length(body.size());
    if (!head_) response.body() = std::move(body);
    metrics_.response(status);
    stream_->expires_after(kWriteTimeout);
    error_code error;
    co_await http::async_write(*stream_, response,
                               asio::redirect_error(asio::use_awaitable, error));
    co_return !error;
  }

  asio::awaitable<bool> begin_events() override {
    if (watch_) watch_->stop_probing();
    http::response<http::empty_body> response{http::status::ok, version_};
    response.set(http::field::content_type, "text/event-stream");
    response.set(http::field::cache_control, "no-cache");
    chunked_ = version_ >= 11;
    if (!chunked_) keep_alive_ = false;  // the end of the connection is the end of the events
    response.keep_alive(keep_alive_);
    if (chunked_) response.chunked(true);
    metrics_.response(200);
    http::response_serializer<http::empty_body> serializer{response};
    stream_->expires_after(kWriteTimeout);
    error_code error;
    co_await http::async_write_header(*stream_, serializer,
                                      asio::redirect_error(asio::use_awaitable, error));
    co_return !error;
  }

  asio::awaitable<bool> event(std::string data) override {
    const std::string text = "data: " + data + "\n\n";
    error_code error;
    stream_->expires_after(kWriteTimeout);
    if (chunked_) {
      co_await asio::async_write(*stream_, http::make_chunk(asio::buffer(text)),
                                 asio::redirect_error(asio::use_awaitable, error));
    } else {
      co_await asio::async_write(*stream_, asio::buffer(text),
                                 asio::redirect_error(asio::use_awaitable, error));
    }
    co_return !error;
  }

  asio::awaitable<bool> end_events() override {
    if (!chunked_) co_return true;
    error_code error;
    stream_->expires_after(kWriteTimeout);
    co_await asio::async_write(*stream_, http::make_chunk_last(),
                               asio::redirect_error(asio::use_awaitable, error));
    co_return !error;
  }

  void watch(std::shared_ptr<Exchange> exchange) override {
    stream_->expires_never();
    watch_ = std::make_shared<ClientWatch>(stream_, version_ >= 11);
    watch_->begin(std::move(exchange));
  }

  void unwatch() override {
    if (watch_) std::exchange(watch_, nullptr)->end();
  }

 private:
  std::shared_ptr<beast::tcp_stream> stream_;
  ServerMetrics& metrics_;
  unsigned version_ = 11;
  bool keep_alive_ = true;
  bool head_ = false;  // the answer is its header
  bool chunked_ = false;
  std::shared_ptr<ClientWatch> watch_;
};

ApiError error_of_reading(error_code error) {
  if (error == http::error::body_limit) {
    return {.status = 413,
            .message = "the body is larger than " + std::to_string(kBodyBytesMax) + " bytes",
            .code = "body_too_large"};
  }
  if (error == http::error::header_limit) {
    return {.status = 431,
            .message = "the header is larger than " + std::to_string(kHeaderBytesMax) + " bytes"};
  }
  return {.status = 400, .message = "not HTTP: " + error.message()};
}

// Reads on for a while what is not wanted: a socket closed with unread bytes resets the connection,
// and the client may never see what it was told.
asio::awaitable<void> drain(beast::tcp_stream& stream) {
  error_code error;
  stream.socket().shutdown(tcp::socket::shutdown_send, error);
  std::vector<char> bytes(64U << 10U);
  stream.expires_after(kDrainTimeout);
  for (std::size_t total = 0; !error && total < kDrainBytesMax;) {
    total += co_await stream.async_read_some(asio::buffer(bytes),
                                             asio::redirect_error(asio::use_awaitable, error));
  }
}

// One more, for as long as it lives.
class Counted {
 public:
  explicit Counted(std::atomic<std::uint32_t>& count) : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;

 private:
  std::atomic<std::uint32_t>& count_;
};

bool is_http_error(error_code error) {
  return error.category() == http::make_error_code(http::error::bad_method).category() &&
         error != http::error::end_of_stream && error != http::error::partial_message;
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpOptions& options, Service& service,
                                                       ServerMetrics& metrics) {
  error_code error;
  const auto address = asio::ip::make_address(options.address, error);
  if (error) {
    return make_error(Errc::invalid,
                      "'" + options.address + "' is no IP address: " + error.message());
  }
  std::unique_ptr<HttpServer> server(new HttpServer(options, service, metrics));
  const tcp::endpoint endpoint(address, options.port);
  server->acceptor_.open(endpoint.protocol(), error);
  if (!error) server->acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) server->acceptor_.bind(endpoint, error);
  if (!error) server->acceptor_.listen(tcp::acceptor::max_listen_connections, error);
  if (error) {
    return make_error(Errc::io, "cannot listen on " + options.address + " port " +
                                    std::to_string(options.port) + ": " + error.message() +
                                    "; choose another with --port");
  }
  return server;
}

void HttpServer::run() {
  asio::signal_set signals(strand_, SIGINT, SIGTERM);
  wait_for_signal(signals);
  asio::co_spawn(strand_, accept(), asio::detached);
  std::vector<std::thread> others;
  for (unsigned i = 1; i < kThreads; ++i) others.emplace_back([this] { io_.run(); });
  io_.run();
  for (std::thread& other : others) other.join();
}

void HttpServer::wait_for_signal(asio::signal_set& signals) {
  signals.async_wait([this, &signals](error_code error, int) {
    if (error) return;
    if (draining_.exchange(true)) return io_.stop();
    error_code ignored;
    acceptor_.close(ignored);
    if (answering_ == 0 || options_.drain_s_max == 0) return io_.stop();
    std::fprintf(stderr,
                 "kvtier-engine: %u requests are answered first, for at most %u s; another "
                 "signal cuts them off\n",
                 answering_.load(), options_.drain_s_max);
    drain_end_.expires_after(std::chrono::seconds(options_.drain_s_max));
    drain_end_.async_wait([this](error_code) { io_.stop(); });
    wait_for_signal(signals);
  });
}

void HttpServer::end_if_drained() {
  if (draining_ && answering_ == 0) io_.stop();
}

asio::awaitable<void> HttpServer::accept() {
  for (;;) {
    error_code error;
    tcp::socket socket = co_await acceptor_.async_accept(
        asio::make_strand(io_), asio::redirect_error(asio::use_awaitable, error));
    if (error == asio::error::operation_aborted || draining_) co_return;
    if (error) {
      // Out of descriptors, most likely: others must end first.
      asio::steady_timer pause(io_, std::chrono::milliseconds(100));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
      continue;
    }
    const std::string peer = socket.remote_endpoint(error).address().to_string();
    socket.set_option(tcp::no_delay(true), error);
    const auto strand = socket.get_executor();
    const auto stream = std::make_shared<beast::tcp_stream>(std::move(socket));
    const auto place =
        places_.enter(peer, [strand, weak = std::weak_ptr<beast::tcp_stream>(stream)] {
          asio::post(strand, [weak] {
            if (const auto last = weak.lock()) last->close();
          });
        });
    if (place == 0) continue;  // closed
    metrics_.connection(1);
    asio::co_spawn(strand, serve(stream, place), [this, place](const std::exception_ptr&) {
      places_.leave(place);
      metrics_.connection(-1);
      end_if_drained();
    });
  }
}

// What is asked of the engine itself, and of nothing that it computes, always has room.
bool HttpServer::has_room_for(const std::string& target) const {
  const std::string path = target.substr(0, target.find('?'));
  return answering_ <= options_.connections_max || path == "/health" || path == "/metrics";
}

asio::awaitable<void> HttpServer::serve(std::shared_ptr<beast::tcp_stream> stream,
                                        ConnectionPlaces::Id place) {
  beast::flat_buffer buffer(kHeaderBytesMax + kBodyBytesMax);
  HttpReply reply(stream, metrics_);
  error_code error;
  bool first = true;
  do {
    stream->expires_after(std::exchange(first, false) ? kFirstHeaderTimeout : kIdleTimeout);
    http::request_parser<http::string_body> parser;
    parser.header_limit(static_cast<std::uint32_t>(kHeaderBytesMax));
    parser.body_limit(kBodyBytesMax);
    co_await http::async_read_header(*stream, buffer, parser,
                                     asio::redirect_error(asio::use_awaitable, error));
    if (!error && beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      http::response<http::empty_body> go_on{http::status::continue_, parser.get().version()};
      co_await http::async_write(*stream, go_on, asio::redirect_error(asio::use_awaitable, error));
    }
    if (!error) {
      stream->expires_after(kReadTimeout);
      co_await http::async_read(*stream, buffer, parser,
                                asio::redirect_error(asio::use_awaitable, error));
    }
    if (error) {
      if (is_http_error(error)) {
        const ApiError told = error_of_reading(error);
        std::string body = told.body().dump();
        const bool head = parser.is_header_done() && parser.get().method() == http::verb::head;
        reply.begin(11, false, head);
        co_await reply.whole(told.status, "application/json", std::move(body), {});
        co_await drain(*stream);
      }
      break;
    }
    auto message = parser.release();
    places_.answering(place);
    {
      const Counted counted(answering_);
      reply.begin(message.version(), message.keep_alive() && !draining_,
                  message.method() == http::verb::head);
      HttpRequest request{std::string(message.method_string()), std::string(message.target()),
                          std::string(message[http::field::authorization]),
                          std::move(message.body())};
      if (has_room_for(request.target)) {
        co_await service_.handle(std::move(request), reply);
      } else {
        const ApiError full{.status = 503,
                            .message = "as many requests are being answered as connections may be",
                            .code = "too_many_connections"};
        std::string body = full.body().dump();
        co_await reply.whole(full.status, "application/json", std::move(body), {});
      }
    }
    places_.waits(place);
    end_if_drained();
  } while (reply.keep_alive() && !draining_ && stream->socket().is_open());
  stream->socket().shutdown(tcp::socket::shutdown_send, error);
}

}  // namespace kvtier::engine::server
