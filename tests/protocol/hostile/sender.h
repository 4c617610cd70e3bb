// A hostile session's connection, and how its messages go out: as they are, garbled, cut, in
// pieces, or with descriptors that nobody asked for. Owned by the session.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "tests/protocol/hostile/mutate.h"
#include "tests/protocol/raw_connection.h"
#include "tests/protocol/tally.h"

namespace kvtier::protocol {

enum class Manner { whole, mutated, broken_header, truncated, trickled, descriptors };

// A message's bytes behind a header that fits them.
Bytes framed(std::span<const std::byte> message);

class Sender {
 public:
  // Both outlive it.
  Sender(Tally& tally, Random& random) : tally_(tally), random_(random) {}

  bool connect(const std::string& socket);
  bool connected() const noexcept { return connection_.has_value(); }
  void close() { connection_.reset(); }
  void half_close();

  // The connection may have gone after these: the daemon has closed it, or takes nothing.
  void send(std::span<const std::byte> bytes, std::span<const int> descriptors = {});
  // `manner` decides what becomes of the frame.
  void send_as(Manner manner, Bytes frame);
  // What comes after may be taken for the rest of it.
  static bool garbles(Manner manner) noexcept;

  // Connected.
  RawConnection::Came receive(std::vector<wire::Frame>& frames, int wait_ms) {
    return connection_->receive(frames, wait_ms);
  }

 private:
  void send_truncated(Bytes frame);
  void send_trickled(const Bytes& frame);
  void send_with_descriptors(const Bytes& frame);

  Tally& tally_;
  Random& random_;
  std::optional<RawConnection> connection_;
};

}  // namespace kvtier::protocol
