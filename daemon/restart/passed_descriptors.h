// The descriptors that the service manager has passed to this process (LISTEN_FDS): sockets to
// listen on, and what an earlier daemon had the manager keep. They are read once and handed out by
// name, each to whoever knows what it is.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/fd.h"

namespace kvtier::daemon {

class PassedDescriptors {
 public:
  // None were passed.
  PassedDescriptors() = default;

  // Takes over what was passed to this process and to no other, and takes the variables that say so
  // out of the environment. Once, before any other descriptor is opened. Errors: io.
  static Result<PassedDescriptors> from_environment();

  // Those of this name, in the order in which they were passed; each is handed out once.
  std::vector<UniqueFd> take(const std::string& name);
  // The unix stream socket that listens; none where none was passed. Errors: invalid (several: only
  // one can be served).
  Result<std::optional<UniqueFd>> take_listening_socket();
  // Of host memory behind them.
  std::uint64_t memory_bytes() const;
  // The names that begin so, of what nobody has taken.
  std::vector<std::string> names(std::string_view prefix = {}) const;

 private:
  std::map<std::string, std::vector<UniqueFd>> by_name_;
};

}  // namespace kvtier::daemon
