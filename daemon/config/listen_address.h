// Where the HTTP listener listens, as the configuration says it: "127.0.0.1:9470", "[::1]:9470".
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <string>

#include "kvtier/result.h"

namespace kvtier::daemon::ops {

// Errors: invalid, with the mend. Names are not looked up: only addresses are taken.
Result<boost::asio::ip::tcp::endpoint> parse_listen(const std::string& text);

// "127.0.0.1:9470"
std::string to_string(const boost::asio::ip::tcp::endpoint& at);

}  // namespace kvtier::daemon::ops
