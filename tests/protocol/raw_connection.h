// A connection to the daemon that takes any bytes and any descriptors, with any care or none.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/wire/frame.h"

namespace kvtier::protocol {

class RawConnection {
 public:
  // None where nobody lets it in at once.
  static std::optional<RawConnection> open(const std::string& socket);

  // False once the daemon has closed it, or where it has taken nothing for `patience_ms`: a frame
  // may then be half sent.
  bool send(std::span<const std::byte> bytes, std::span<const int> descriptors = {},
            int patience_ms = 2000);
  enum class Came { frames, nothing, end };
  // Waits for at most `wait_ms`.
  Came receive(std::vector<wire::Frame>& frames, int wait_ms);
  void finish_sending();
  int fd() const noexcept { return socket_.get(); }

 private:
  explicit RawConnection(UniqueFd socket) : socket_(std::move(socket)) {}
  UniqueFd socket_;
  wire::FrameReader reader_;
};

}  // namespace kvtier::protocol
