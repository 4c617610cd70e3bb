// An HTTP connection to an OpenAI-compatible server, one request at a time. Of one io_context's
// thread.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/verb.hpp>
#include <chrono>
#include <optional>
#include <string>

#include "kvtier/result.h"

namespace kvtier::warm {

struct Url {
  std::string host;  // without the brackets of an IPv6 address
  std::string port;
  std::string base;  // "" or "/v1", without a slash at the end
};
// "http://HOST[:PORT][/BASE]"; the base is /v1 if left out. Errors: invalid, naming the mend.
Result<Url> parse_url(const std::string& text);
std::string show(const Url& url);

struct EndpointOptions {
  Url url;
  std::string api_key;  // empty: none
  std::chrono::milliseconds timeout{600'000};
};

struct HttpAnswer {
  unsigned status = 0;
  std::string body;
};

class Endpoint {
 public:
  // `options` outlive it.
  Endpoint(boost::asio::io_context& io, const EndpointOptions& options)
      : io_(io), options_(options) {}

  // Connects where that is needed; the connection is kept if the server keeps it. `target` comes
  // after the base. Errors: unavailable (naming the endpoint), deadline.
  boost::asio::awaitable<Result<HttpAnswer>> ask(boost::beast::http::verb verb, std::string target,
                                                 std::string body);

 private:
  boost::asio::awaitable<Result<void>> connect();
  Error failure(const std::string& doing, const boost::system::error_code& error);

  boost::asio::io_context& io_;
  const EndpointOptions& options_;
  std::optional<boost::beast::tcp_stream> stream_;
  boost::beast::flat_buffer buffer_;
};

}  // namespace kvtier::warm
