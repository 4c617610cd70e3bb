// Frames that are not as they should be.
#pragma once

#include <cstddef>
#include <vector>

#include "tests/protocol/hostile/random.h"

namespace kvtier::protocol {

using Bytes = std::vector<std::byte>;

// A frame (header and body) with a few words of its message changed: bits, numbers, and what
// Cap'n Proto takes for pointers to lists and structs.
void mutate_words(Bytes& frame, Random& random);
// A header that breaks one of the rules, or more than one.
void break_header(Bytes& frame, Random& random);

}  // namespace kvtier::protocol
