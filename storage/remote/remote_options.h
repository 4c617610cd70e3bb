// What a remote store is told. Known to all parts of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "kvtier/result.h"

namespace kvtier::storage {

struct RemoteOptions {
  // redis://[user@]host:port[,host:port...], rediss:// the same over TLS,
  // redis+unix://[user@]/socket, file:///shared/directory.
  std::string url;
  // Files, empty where there is none: the password of `user`, or of the default user; the authority
  // that the server's certificate must come from (the system's authorities where it is empty); what
  // this side shows of itself. PEM, but for the password.
  std::string password_file, tls_ca_file, tls_cert_file, tls_key_file;
  bool cluster = false;  // insist on a cluster; one is recognised without
  std::string key_file;  // 32 bytes: values are sealed with AES-256-GCM; empty: they are not
  // To each server, for records; one more is for questions. Of a directory: the threads that work
  // on it.
  std::uint32_t connections = 4;
  std::uint64_t read_bytes_per_s = 0, write_bytes_per_s = 0;  // 0: no bound
  std::chrono::seconds expiry{0};  // of a value, from its writing; 0: none
};

}  // namespace kvtier::storage
