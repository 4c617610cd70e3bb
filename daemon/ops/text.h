// Names that clients gave, which may be anything, made fit to be shown.
#pragma once

#include <string>
#include <string_view>

namespace kvtier::daemon::ops {

// Valid UTF-8 of at most `bytes_max` bytes, control characters and bytes that are no UTF-8 replaced
// by
// '?'; "..." at the end of what was cut.
std::string shown(std::string_view text, std::size_t bytes_max);

}  // namespace kvtier::daemon::ops
