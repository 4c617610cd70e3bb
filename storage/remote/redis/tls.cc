#include "storage/remote/redis/tls.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

namespace kvtier::storage {
namespace {

Error bad_file(const char* option, const std::string& file, const char* must) {
  return make_error(Errc::invalid, std::string(option) + " " + file + " of the remote store " +
                                       must + ": " +
                                       tls_failure(nullptr, "it holds something else"));
}

bool is_address(const std::string& host) {
  unsigned char bytes[16];
  return ::inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

}  // namespace

void FreeTls::operator()(SSL_CTX* context) const noexcept {
  ::SSL_CTX_free(context);
}
void FreeTls::operator()(SSL* connection) const noexcept {
  ::SSL_free(connection);
}

std::string tls_failure(const SSL* of, const std::string& otherwise) {
  if (of != nullptr) {
    const long verdict = ::SSL_get_verify_result(of);
    if (verdict != X509_V_OK) {
      ::ERR_clear_error();
      return std::string("its certificate does not hold: ") +
             ::X509_verify_cert_error_string(verdict) + "; look at tls_ca_file";
    }
  }
  const unsigned long code = ::ERR_get_error();
  ::ERR_clear_error();
  const char* const reason = code == 0 ? nullptr : ::ERR_reason_error_string(code);
  return reason == nullptr ? otherwise : reason;
}

Result<TlsContext> make_tls_context(const RemoteOptions& options) {
  TlsContext context(::SSL_CTX_new(::TLS_client_method()));
  if (!context) return make_error(Errc::invalid, "TLS: " + tls_failure(nullptr, "no memory"));
  ::SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  ::SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  // A write may go on with what is left of it, from another place.
  ::SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                        SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                        SSL_MODE_RELEASE_BUFFERS);
  if (options.tls_ca_file.empty()) {
    if (::SSL_CTX_set_default_verify_paths(context.get()) != 1)
      return make_error(Errc::invalid,
                        "the system's certificate authorities cannot be read: name "
                        "the server's as tls_ca_file");
  } else if (::SSL_CTX_load_verify_locations(context.get(), options.tls_ca_file.c_str(), nullptr) !=
             1) {
    return bad_file("tls_ca_file", options.tls_ca_file, "must hold certificates in PEM");
  }
  if (options.tls_cert_file.empty()) return context;
  if (::SSL_CTX_use_certificate_chain_file(context.get(), options.tls_cert_file.c_str()) != 1)
    return bad_file("tls_cert_file", options.tls_cert_file, "must hold a certificate in PEM");
  if (::SSL_CTX_use_PrivateKey_file(context.get(), options.tls_key_file.c_str(),
                                    SSL_FILETYPE_PEM) != 1 ||
      ::SSL_CTX_check_private_key(context.get()) != 1) {
    return bad_file("tls_key_file", options.tls_key_file,
                    "must hold the certificate's private key in PEM");
  }
  return context;
}

Result<TlsConnection> begin_tls(SSL_CTX& context, int socket, const std::string& host) {
  ::ERR_clear_error();
  TlsConnection connection(::SSL_new(&context));
  bool good = connection && ::SSL_set_fd(connection.get(), socket) == 1;
  if (good && is_address(host)) {
    good = ::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(connection.get()), host.c_str()) == 1;
  } else if (good) {
    good = ::SSL_set1_host(connection.get(), host.c_str()) == 1 &&
           ::SSL_set_tlsext_host_name(connection.get(), host.c_str()) == 1;
  }
  if (!good) return make_error(Errc::io, "TLS: " + tls_failure(nullptr, "cannot begin"));
  ::SSL_set_connect_state(connection.get());
  return connection;
}

}  // namespace kvtier::storage
