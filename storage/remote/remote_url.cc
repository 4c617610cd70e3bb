#include "storage/remote/remote_url.h"

#include <charconv>

namespace kvtier::storage {
namespace {

constexpr std::uint16_t kRedisPort = 6379;

Error bad_url(const std::string& url, const std::string& why) {
  return make_error(Errc::invalid,
                    "remote store \"" + url + "\": " + why +
                        "; it is redis://[user@]host:port[,host:port...], rediss://..., "
                        "redis+unix://[user@]/socket or file:///directory");
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

Result<RemoteUrl> parse_servers(const std::string& url, std::string_view rest, RemoteUrl into) {
  while (rest.ends_with('/')) rest.remove_suffix(1);
  if (rest.find('/') != std::string_view::npos)
    return bad_url(url, "has something behind the servers; records are always in database 0");
  while (true) {
    const std::size_t comma = rest.find(',');
    const auto address = parse_address(rest.substr(0, comma));
    if (!address) return bad_url(url, address.error().message);
    into.servers.push_back(*address);
    if (comma == std::string_view::npos) return into;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace

std::string RemoteAddress::text() const {
  if (is_socket()) return host;
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<RemoteAddress> parse_address(std::string_view text) {
  RemoteAddress address{"", kRedisPort};
  std::string_view port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) return make_error(Errc::invalid, "has a [ without its ]");
    address.host = text.substr(1, end - 1);
    port = text.substr(end + 1);
  } else {
    const std::size_t colon = text.rfind(':');
    address.host = text.substr(0, colon);
    if (colon != std::string_view::npos) port = text.substr(colon);
    if (address.host.find(':') != std::string::npos)
      return make_error(Errc::invalid, "has an IPv6 address that is not in []");
  }
  if (address.host.empty()) return make_error(Errc::invalid, "names no host");
  if (port.empty()) return address;
  const char* const last = port.data() + port.size();
  const auto [end, failed] = std::from_chars(port.data() + 1, last, address.port);
  if (port[0] != ':' || failed != std::errc{} || end != last || address.port == 0) {
    return make_error(Errc::invalid,
                      "\"" + std::string(port.substr(1)) + "\" is not a port from 1 to 65535");
  }
  return address;
}

Result<RemoteUrl> RemoteUrl::parse(const std::string& text) {
  RemoteUrl url;
  std::string_view rest = text;
  if (take_prefix(rest, "file://")) {
    url.kind = Kind::directory;
    url.directory = std::filesystem::path(rest).lexically_normal();
    if (!url.directory.is_absolute())
      return bad_url(text, "a directory is named by its absolute path, after three slashes");
    return url;
  }
  const bool socket = take_prefix(rest, "redis+unix://");
  url.tls = !socket && take_prefix(rest, "rediss://");
  if (!socket && !url.tls && !take_prefix(rest, "redis://"))
    return bad_url(text, "is of no kind that is known");
  if (const std::size_t at = rest.find('@'); at != std::string_view::npos) {
    url.user = rest.substr(0, at);
    rest.remove_prefix(at + 1);
    if (url.user.find(':') != std::string::npos)
      return make_error(Errc::invalid,
                        "remote store: its URL has a password, which others could see; put it into "
                        "a file, and name that as password_file");
  }
  if (!socket) return parse_servers(text, rest, std::move(url));
  if (!rest.starts_with('/') || rest.size() < 2)
    return bad_url(text, "a socket is named by its absolute path");
  url.servers.push_back({std::string(rest), 0});
  return url;
}

}  // namespace kvtier::storage
