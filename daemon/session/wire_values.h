// Values as they lie in messages, and the word for a message that makes no sense.
#pragma once

#include <cstring>
#include <optional>
#include <string>

#include "core/wire/frame.h"
#include "kvtier/key.h"
#include "kvtier/result.h"

namespace kvtier::daemon {

inline Error malformed(const std::string& what) {
  return make_error(Errc::malformed, "request: " + what);
}

template <class Digest>
capnp::Data::Reader data_of(const Digest& digest) {
  return {reinterpret_cast<const kj::byte*>(digest.bytes.data()), digest.bytes.size()};
}

// None, where it has not the size of one.
template <class Digest>
std::optional<Digest> digest_from(capnp::Data::Reader data) {
  Digest digest;
  if (data.size() != sizeof digest) return std::nullopt;
  std::memcpy(&digest, data.begin(), sizeof digest);
  return digest;
}

}  // namespace kvtier::daemon
