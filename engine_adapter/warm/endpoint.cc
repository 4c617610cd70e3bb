#include "engine_adapter/warm/endpoint.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/http.hpp>
#include <charconv>

#include "engine_adapter/warm/limits.h"

namespace kvtier::warm {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr const char* kScheme = "http://";

Error bad_url(const std::string& text, const std::string& why) {
  return make_error(Errc::invalid, "endpoint '" + text + "': " + why +
                                       "; give http://HOST:PORT or http://HOST:PORT/v1");
}

// The completion token of every operation: its error goes to `error`.
auto redirect(error_code& error) {
  return asio::redirect_error(asio::use_awaitable, error);
}

bool is_port(const std::string& text) {
  unsigned port = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), port);
  return parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size() && port >= 1 &&
         port <= 65535;
}

}  // namespace

Result<Url> parse_url(const std::string& text) {
  if (text.starts_with("https://")) {
    return bad_url(text, "TLS is not spoken here, put a proxy that does it in between");
  }
  if (!text.starts_with(kScheme)) return bad_url(text, "is no http:// address");
  const std::string rest = text.substr(std::string(kScheme).size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  const std::string authority = rest.substr(0, slash);
  Url url{.host = authority, .port = "80", .base = rest.substr(slash)};
  const std::size_t colon = authority.rfind(':');
  const std::size_t bracket = authority.rfind(']');
  if (colon != std::string::npos && (bracket == std::string::npos || colon > bracket)) {
    url.host = authority.substr(0, colon);
    url.port = authority.substr(colon + 1);
  }
  if (url.host.starts_with('[') && url.host.ends_with(']')) {
    url.host = url.host.substr(1, url.host.size() - 2);
  }
  if (url.host.empty() || authority.find_first_of("@ \t\r\n") != std::string::npos) {
    return bad_url(text, "has no host that can be asked");
  }
  if (!is_port(url.port)) return bad_url(text, "has no port from 1 to 65535");
  if (url.base.find_first_of("?# \t\r\n") != std::string::npos) {
    return bad_url(text, "has more than a path");
  }
  while (url.base.ends_with('/')) url.base.pop_back();
  if (url.base.empty()) url.base = "/v1";
  return url;
}

std::string show(const Url& url) {
  const bool six = url.host.find(':') != std::string::npos;
  return kScheme + (six ? "[" + url.host + "]" : url.host) + ":" + url.port + url.base;
}

Error Endpoint::failure(const std::string& doing, const error_code& error) {
  stream_.reset();
  const bool late = error == beast::error::timeout;
  return make_error(
      late ? Errc::deadline : Errc::unavailable,
      show(options_.url) + ": " + doing + ": " + (late ? "no answer in time" : error.message()));
}

asio::awaitable<Result<void>> Endpoint::connect() {
  error_code error;
  tcp::resolver resolver(io_);
  const auto addresses =
      co_await resolver.async_resolve(options_.url.host, options_.url.port, redirect(error));
  if (error) co_return failure("the name is not known", error);
  stream_.emplace(io_);
  stream_->expires_after(kConnectTimeout);
  co_await stream_->async_connect(addresses, redirect(error));
  if (error) {
    co_return make_error(Errc::unavailable, failure("does not take connections", error).message);
  }
  co_return Result<void>{};
}

asio::awaitable<Result<HttpAnswer>> Endpoint::ask(http::verb verb, std::string target,
                                                  std::string body) {
  if (!stream_) {
    const auto connected = co_await connect();
    if (!connected) co_return connected.error();
  }
  http::request<http::string_body> request{verb, options_.url.base + target, 11};
  request.set(http::field::host, options_.url.host + ":" + options_.url.port);
  request.set(http::field::user_agent, "kvtier-warm");
  if (!options_.api_key.empty()) {
    request.set(http::field::authorization, "Bearer " + options_.api_key);
  }
  if (verb == http::verb::post) request.set(http::field::content_type, "application/json");
  request.body() = std::move(body);
  request.prepare_payload();

  error_code error;
  stream_->expires_after(options_.timeout);
  co_await http::async_write(*stream_, request, redirect(error));
  if (error) co_return failure("a request could not be sent", error);
  buffer_.clear();
  http::response_parser<http::string_body> parser;
  parser.body_limit(kAnswerBytesMax);
  co_await http::async_read(*stream_, buffer_, parser, redirect(error));
  if (error) co_return failure("the answer broke off", error);
  if (!parser.get().keep_alive()) stream_.reset();
  co_return HttpAnswer{parser.get().result_int(), std::move(parser.get().body())};
}

}  // namespace kvtier::warm
