// What TLS connections have in common. Made once, used by the store's thread.
#pragma once

#include <memory>
#include <string>

#include "kvtier/result.h"
#include "storage/remote/remote_options.h"

using SSL_CTX = struct ssl_ctx_st;
using SSL = struct ssl_st;

namespace kvtier::storage {

struct FreeTls {
  void operator()(SSL_CTX* context) const noexcept;
  void operator()(SSL* connection) const noexcept;
};
using TlsContext = std::unique_ptr<SSL_CTX, FreeTls>;
using TlsConnection = std::unique_ptr<SSL, FreeTls>;

// TLS 1.2 or later, the server's certificate checked. Errors: invalid (a file that cannot be used:
// says which and why).
Result<TlsContext> make_tls_context(const RemoteOptions& options);

// On a connected socket, to a server whose certificate must name `host`, or its address. Errors:
// io.
Result<TlsConnection> begin_tls(SSL_CTX& context, int socket, const std::string& host);

// What OpenSSL's last failure on this thread was, or `otherwise`; `of` may say more.
std::string tls_failure(const SSL* of, const std::string& otherwise);

}  // namespace kvtier::storage
