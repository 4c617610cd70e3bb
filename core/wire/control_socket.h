// The socket to the daemon with its frames. Nothing here waits.
#pragma once

#include <string>
#include <vector>

#include "core/base/fd.h"
#include "core/base/units.h"
#include "core/wire/frame.h"

namespace kvtier::session {

// Errors: invalid (the path), unavailable (naming the socket and the mend).
Result<UniqueFd> connect_unix(const std::string& path);

// Unsent bytes; a peer that lets more pile up does not read and loses the session.
inline constexpr std::size_t kUnsentBytesMax = 16_MiB;

class ControlSocket {
 public:
  ControlSocket() = default;
  explicit ControlSocket(UniqueFd fd);

  int fd() const noexcept { return fd_.get(); }
  // Errors: io.
  Result<UniqueFd> copy() const { return fd_.duplicate(); }
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  bool unsent() const noexcept { return !writer_.empty(); }

  // Errors: as FrameWriter and FrameReader.
  Result<void> push(capnp::MessageBuilder& message) { return writer_.push(message); }
  Result<void> send() { return writer_.send(fd_.get()); }
  Result<void> receive(std::vector<wire::Frame>& frames) {
    return reader_.receive(fd_.get(), frames);
  }

 private:
  UniqueFd fd_;
  wire::FrameReader reader_;
  wire::FrameWriter writer_{0};
};

// The error that a daemon sent. A code we do not know reads as refused.
Error error_of(wire::Failure::Reader error);

}  // namespace kvtier::session
