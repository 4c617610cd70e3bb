// The socket that clients connect to: made in the file system, or the service manager's.
//
// Owned by the control thread. One connection at a time is taken, and the next only when the one
// before it has been let in or turned away; where that is not to be gone on with at once, it is
// tried again in a second. A path that is in use, or is no socket, is never removed; a socket that
// was made here is, when it is closed. Decides nothing about peers.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <string>

#include "core/base/fd.h"
#include "daemon/config/config.h"

namespace kvtier::daemon {

class Listener {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;
  // False where nobody is to be let in for a while.
  using Admit = std::function<bool(Socket)>;

  Listener(const boost::asio::any_io_executor& control, Admit admit)
      : acceptor_(control), timer_(control), admit_(std::move(admit)) {}

  // Makes the socket, with this mode. Errors: invalid, refused (in use, or no socket), io; each
  // names the setting to mend.
  Result<void> open(const std::string& path, mode_t mode);
  // Serves on one that listens already. `configured`: the path that was expected. Errors: io.
  Result<void> adopt(UniqueFd listening, const std::string& configured);
  void accept();
  // Nobody is let in from now on.
  void close();

  // Where clients connect; once it is open.
  const std::string& path() const noexcept { return path_; }

 private:
  void accept_later();

  boost::asio::local::stream_protocol::acceptor acceptor_;
  boost::asio::steady_timer timer_;
  Admit admit_;
  std::string path_;
  bool made_ = false;  // and so removes it
  bool closed_ = false;
};

}  // namespace kvtier::daemon
