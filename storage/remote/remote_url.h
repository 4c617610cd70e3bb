// Where a remote store is, as RemoteOptions::url says it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "kvtier/result.h"

namespace kvtier::storage {

// Of one server: a host and its port, or a socket's path and port 0.
struct RemoteAddress {
  std::string host;
  std::uint16_t port = 0;

  bool is_socket() const noexcept { return port == 0; }
  std::string text() const;
  friend auto operator<=>(const RemoteAddress&, const RemoteAddress&) = default;
};

// "host:port", "[::1]:port" or "host", which has port 6379. Errors: invalid.
Result<RemoteAddress> parse_address(std::string_view text);

struct RemoteUrl {
  enum class Kind { redis, directory };
  Kind kind = Kind::redis;
  bool tls = false;
  std::string user;                    // empty: the server's default user
  std::vector<RemoteAddress> servers;  // at least one, of a Redis
  std::filesystem::path directory;     // absolute

  // Errors: invalid, saying what is wrong and what would be right.
  static Result<RemoteUrl> parse(const std::string& text);
};

}  // namespace kvtier::storage
