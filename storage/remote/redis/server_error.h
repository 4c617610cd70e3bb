// What an error that a server answers with says of the server, and what to do about it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "storage/remote/remote_url.h"

namespace kvtier::storage {

struct ServerError {
  enum class Kind {
    moved,        // the key's slot is served by `to`
    ask,          // this once, `to` has it
    try_again,    // in a moment
    not_master,   // it takes no writes, another does
    not_a_value,  // there is something else under the key
    unusable,     // nothing can be asked of this server now
    no_writes,    // it takes no writes now
    denied,       // the user may not
    no_cluster,   // it is none
    other
  };
  Kind kind = Kind::other;
  RemoteAddress to;  // an empty host: the server's own
  std::uint16_t slot = 0;
  std::string why;         // with the mend
  bool full = false;       // no_writes: for want of room
  bool map_stale = false;  // who serves what may have changed
};

// `text` begins with the error's code and was sent by a server, so it may be anything.
ServerError classify_error(std::string_view text);

}  // namespace kvtier::storage
