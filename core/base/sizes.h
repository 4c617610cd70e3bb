// Sizes in bytes as people write them: in the configuration, on command lines.
#pragma once

#include <cstdint>
#include <string_view>

#include "kvtier/result.h"

namespace kvtier {

// How parse_size() wants it, for messages.
inline constexpr const char* kSizeForms =
    "bytes, or a number with a unit: 64MiB, 2.5GiB (KiB, MiB, GiB, TiB; K, M, G, T are the same; "
    "KB, "
    "MB, GB, TB are powers of 1000)";

// "1024", "512 MiB", "2.5GiB", "2G", "2GB"; upper or lower case, spaces before the unit. What a
// unit makes of it is rounded down to a multiple of 4096 where it is larger and none (2.1GiB, 1GB):
// memory and disk come in pages. At most 2^62. Errors: invalid, with kSizeForms.
Result<std::uint64_t> parse_size(std::string_view text);

}  // namespace kvtier
