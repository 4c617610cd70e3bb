// Values as Cap'n Proto's data.
#pragma once

#include <capnp/blob.h>

#include <string>

namespace kvtier::protocol {

capnp::Data::Reader data_of(const auto& value) {
  return {reinterpret_cast<const kj::byte*>(&value), sizeof value};
}
inline capnp::Data::Reader data_of(const std::string& text) {
  return {reinterpret_cast<const kj::byte*>(text.data()), text.size()};
}

}  // namespace kvtier::protocol
