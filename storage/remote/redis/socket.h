// One non-blocking connection to a server: TCP or a unix socket, with TLS or without. No call
// waits. For the store's thread.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/base/fd.h"
#include "storage/remote/redis/tls.h"
#include "storage/remote/remote_url.h"

namespace kvtier::storage {

struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t length = 0;
};

// The addresses of a server, at once where it is named by numbers or a path, else from a thread
// that may take as long as the name service does. `found` runs on either thread, and must not
// throw. Errors: io (says why the name is not known).
using FoundAddresses = std::function<void(Result<std::vector<SocketAddress>>)>;
void find_addresses(const RemoteAddress& server, const FoundAddresses& found);

class RedisSocket {
 public:
  // Begins to connect. `host` is what a certificate must name; `tls` null: none. Errors: io.
  static Result<RedisSocket> connect(const SocketAddress& to, SSL_CTX* tls, std::string host);

  // Goes on with connecting and the TLS handshake, once poll() says that it can. Errors: io.
  // False: not ready yet.
  Result<bool> advance();

  // So many bytes, 0 where none can be moved now. Errors: io, unavailable (the server closed it).
  Result<std::size_t> receive(std::span<const iovec> into);
  Result<std::size_t> send(std::span<const iovec> from);

  // Connected, and in the TLS handshake.
  bool is_shaking_hands() const noexcept { return connected_ && !ready_; }
  int descriptor() const noexcept { return fd_.get(); }
  // What poll() is to wait for. `to_send`: there is something to send.
  short wanted(bool to_send) const noexcept;
  // Bytes have come that poll() does not know of.
  bool has_more() const noexcept;

 private:
  // Where TLS stands still, and until what.
  enum class Wants { nothing, input, output };

  Result<std::size_t> moved(int bytes, Wants& wants, const char* doing);

  UniqueFd fd_;
  SSL_CTX* context_ = nullptr;
  std::string host_;
  TlsConnection tls_;
  bool connected_ = false, ready_ = false;
  Wants reading_wants_ = Wants::nothing, writing_wants_ = Wants::nothing;
};

}  // namespace kvtier::storage
