#include "daemon/config/listen_address.h"

#include <charconv>
#include <sstream>

namespace kvtier::daemon::ops {

Result<boost::asio::ip::tcp::endpoint> parse_listen(const std::string& text) {
  const auto bad = [] {
    return make_error(Errc::invalid,
                      "expected an address and a port, such as \"127.0.0.1:9470\" or "
                      "\"[::1]:9470\"; empty for none");
  };
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) return bad();
  std::string host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    return bad();
  }
  std::uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, port);
  if (parsed.ec != std::errc{} || parsed.ptr != end) return bad();
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(host, error);
  if (error) return bad();
  return boost::asio::ip::tcp::endpoint(address, port);
}

std::string to_string(const boost::asio::ip::tcp::endpoint& at) {
  std::ostringstream text;
  text << at;
  return text.str();
}

}  // namespace kvtier::daemon::ops
