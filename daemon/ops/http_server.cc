#include "daemon/ops/http_server.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <optional>

#include "core/base/connection_places.h"
#include "daemon/ops/limits.h"

namespace kvtier::daemon::ops {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;

struct HttpServer::State : std::enable_shared_from_this<State> {
  State(asio::io_context& context, std::vector<std::string> names, Handler handle)
      : acceptor(context), again(context), hosts(std::move(names)), handler(std::move(handle)) {}
  void accept();
  void take(tcp::socket socket);
  bool known_host(std::string_view host) const;

  tcp::acceptor acceptor;
  asio::steady_timer again;
  std::vector<std::string> hosts;
  Handler handler;
  HttpCounts counts;
  ConnectionPlaces places{kConnectionsMax};
};

namespace {

HttpReply plain(unsigned status, std::string text) {
  HttpReply reply;
  reply.status = status;
  reply.body = std::move(text);
  return reply;
}

}  // namespace

// One connection: a request, its reply, the next. Keeps itself alive while an operation is under
// way.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(tcp::socket socket, std::shared_ptr<HttpServer::State> server)
      : stream_(std::move(socket)), server_(std::move(server)) {}
  ~HttpConnection() { server_->places.leave(place_); }

  // False where there is no place for it.
  bool begin() {
    beast::error_code ignored;
    const auto peer = stream_.socket().remote_endpoint(ignored).address().to_string();
    place_ = server_->places.enter(peer, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->stream_.close();
    });
    if (place_ != 0) read();
    return place_ != 0;
  }

 private:
  void read() {
    parser_.emplace();
    parser_->header_limit(kHeaderBytesMax);
    parser_->body_limit(0);
    stream_.expires_after(requests_ == 0 ? kFirstRequestTime : kRequestTime);
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](beast::error_code error, std::size_t) {
                       self->request(error);
                     });
  }

  void request(beast::error_code error) {
    server_->places.answering(place_);
    if (error) {
      ++server_->counts.bad_requests;
      head_ = false;
      if (error == http::error::header_limit)
        return refuse(431, "the request's header is too long");
      if (error == http::error::body_limit) return refuse(413, "no request has a body here");
      if (error.category() == http::make_error_code(http::error::bad_method).category() &&
          error != http::error::end_of_stream && error != http::error::partial_message) {
        return refuse(400, "not an HTTP request");
      }
      return close();
    }
    const auto& request = parser_->get();
    head_ = request.method() == http::verb::head;
    keep_ = request.keep_alive() && ++requests_ < kRequestsPerConnectionMax;
    ++server_->counts.requests;
    if (!head_ && request.method() != http::verb::get) {
      ++server_->counts.bad_requests;
      return refuse(405, "only GET and HEAD: kvtierctl is for changes");
    }
    const auto host = request[http::field::host];
    if (!server_->known_host({host.data(), host.size()})) {
      ++server_->counts.bad_requests;
      return refuse(421,
                    "asked by an unknown name: use an address, localhost, or list the name in "
                    "[http] hosts");
    }
    const auto target = request.target();
    std::string path(target.data(), std::min(target.size(), target.find('?')));
    server_->handler(
        path, [self = shared_from_this()](HttpReply reply) { self->write(std::move(reply)); });
  }

  void refuse(unsigned status, const std::string& text) {
    keep_ = false;
    write(plain(status, text + "\n"));
  }

  void write(HttpReply reply) {
    response_ = {};
    response_.version(11);
    response_.result(reply.status);
    response_.set(http::field::server, "kvtierd");
    response_.set(http::field::content_type, reply.type);
    response_.set(http::field::cache_control, "no-store");
    response_.set("Content-Security-Policy", reply.content_policy);
    response_.set("X-Content-Type-Options", "nosniff");
    response_.set("Cross-Origin-Resource-Policy", "same-origin");
    response_.set("Referrer-Policy", "no-referrer");
    if (reply.status == 405) response_.set(http::field::allow, "GET, HEAD");
    response_.keep_alive(keep_);
    response_.content_length(reply.body.size());
    if (!head_) response_.body() = std::move(reply.body);
    serializer_.emplace(response_);
    stream_.expires_after(kReplyTime);
    const auto done = [self = shared_from_this()](beast::error_code error, std::size_t) {
      self->serializer_.reset();
      if (error || !self->keep_) return self->close();
      self->server_->places.waits(self->place_);
      self->read();
    };
    // A reply to HEAD names the length of a body that it does not have.
    head_ ? http::async_write_header(stream_, *serializer_, done)
          : http::async_write(stream_, *serializer_, done);
  }

  void close() {
    beast::error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  }

  beast::tcp_stream stream_;
  std::shared_ptr<HttpServer::State> server_;
  beast::flat_buffer buffer_{kHeaderBytesMax + 1024};
  std::optional<http::request_parser<http::string_body>> parser_;
  http::response<http::string_body> response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
  ConnectionPlaces::Id place_ = 0;
  std::size_t requests_ = 0;
  bool head_ = false;
  bool keep_ = false;
};

void HttpServer::State::accept() {
  acceptor.async_accept([self = shared_from_this()](beast::error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !self->acceptor.is_open()) return;
    if (!error) {
      self->take(std::move(socket));
      return self->accept();
    }
    // No descriptor left, most likely: at once would be again and again.
    self->again.expires_after(std::chrono::seconds(1));
    self->again.async_wait([self](beast::error_code cancelled) {
      if (!cancelled) self->accept();
    });
  });
}

void HttpServer::State::take(tcp::socket socket) {
  ++counts.connections;
  const std::uint64_t before = places.closed();
  const bool in = std::make_shared<HttpConnection>(std::move(socket), shared_from_this())->begin();
  counts.refused_connections += places.closed() - before + (in ? 0 : 1);
}

bool HttpServer::State::known_host(std::string_view host) const {
  if (host.empty()) return false;
  std::string name(host);
  if (name.front() == '[') {
    const auto end = name.find(']');
    if (end == std::string::npos) return false;
    name = name.substr(1, end - 1);
  } else if (const auto colon = name.find(':'); colon != std::string::npos) {
    name.resize(colon);
  }
  std::ranges::transform(name, name.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
  });
  beast::error_code not_an_address;
  (void)asio::ip::make_address(name, not_an_address);
  return !not_an_address || name == "localhost" || std::ranges::find(hosts, name) != hosts.end();
}

HttpServer::HttpServer(asio::io_context& io, std::vector<std::string> hosts, Handler handler)
    : state_(std::make_shared<State>(io, std::move(hosts), std::move(handler))) {}

HttpServer::~HttpServer() {
  beast::error_code ignored;
  state_->acceptor.close(ignored);
  state_->again.cancel();
}

Result<void> HttpServer::listen(const tcp::endpoint& at) {
  beast::error_code error;
  tcp::acceptor& acceptor = state_->acceptor;
  acceptor.open(at.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(at, error);
  if (!error) acceptor.listen(kBacklog, error);
  if (error) {
    beast::error_code ignored;
    acceptor.close(ignored);
    return make_error(Errc::io, error.message());
  }
  state_->accept();
  return {};
}

bool HttpServer::listening() const noexcept {
  return state_->acceptor.is_open();
}

tcp::endpoint HttpServer::address() const {
  beast::error_code ignored;
  return state_->acceptor.local_endpoint(ignored);
}

const HttpCounts& HttpServer::counts() const noexcept {
  return state_->counts;
}

}  // namespace kvtier::daemon::ops
