// Small pieces of messages that several parts of the session thread say or hear.
#pragma once

#include <cstddef>
#include <string>

#include "core/wire/frame.h"
#include "kvtier/client.h"

namespace kvtier::session {

inline Error malformed(const std::string& what) {
  return make_error(Errc::malformed, "kvtierd sent " + what);
}

inline Error not_connected() {
  return make_error(Errc::unavailable, "not connected to kvtierd");
}

// The daemon has more reasons than an engine is told apart.
inline Result<void> narrowed(const Result<void>& result, Errc other) {
  if (result || result.error().code == Errc::unavailable) return result;
  return make_error(other, result.error().message);
}

inline capnp::Data::Reader data(const void* bytes, std::size_t count) {
  return {static_cast<const kj::byte*>(bytes), count};
}

inline capnp::Data::Reader data(const Key& key) {
  return data(key.bytes.data(), key.bytes.size());
}

}  // namespace kvtier::session
